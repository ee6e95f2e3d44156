//! Calls of AWS's JSON protocol: the reads of ACM.

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};

use super::{ACCOUNT, Shared};
use crate::fault::Effect;
use crate::iam::{Access, Resource, Tags};

/// The header that names the service and the action.
const TARGET: &str = "x-amz-target";

/// Returns the action of a call of the JSON protocol.
pub(super) fn action(headers: &HeaderMap) -> Option<&str> {
    let (_, action) = headers.get(TARGET)?.to_str().ok()?.split_once('.')?;
    Some(action)
}

impl Shared {
    /// Responds to a call to ACM; an error closes the connection.
    pub(super) async fn respond_json(
        &self,
        action: String,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Response<Full<Bytes>>> {
        let (effect, policy) = {
            let mut state = self.state();
            *state.calls.entry(action.clone()).or_default() += 1;
            (state.armed.effect_on(&action), state.policy.clone())
        };
        let access = Access { action: format!("acm:{action}"), resources: resources(&body), ..Access::default() };
        if let Some(resource) = policy.and_then(|policy| policy.denies(&access)) {
            let message = format!("not authorized to perform: {} on resource: {resource}", access.action);
            self.denials.add(access.action, resource);
            return refusal(400, "AccessDeniedException", &message);
        }
        match effect {
            None => self.forward_json(headers, body).await,
            Some(Effect::Refuse { status, code, message }) => refusal(status, &code, &message),
            Some(Effect::Throttle { .. }) => refusal(400, "ThrottlingException", "Rate exceeded"),
            Some(Effect::Outage) => refusal(500, "InternalFailure", "An internal error has occurred"),
            Some(Effect::Slow(time)) => {
                tokio::time::sleep(time).await;
                self.forward_json(headers, body).await
            }
            Some(Effect::Held(hold)) => {
                let response = self.forward_json(headers, body).await;
                hold.wait().await;
                response
            }
            Some(Effect::ResponseLost | Effect::Pending(_)) => Err(anyhow!("the response to {action} is lost")),
        }
    }

    async fn forward_json(&self, headers: &HeaderMap, body: Bytes) -> Result<Response<Full<Bytes>>> {
        let mut request = Request::builder().method(Method::POST).uri(format!("http://{}/", self.moto));
        for (name, value) in headers {
            if ![HOST, CONTENT_LENGTH, TRANSFER_ENCODING].contains(name) {
                request = request.header(name, value);
            }
        }
        let request = request.header(ACCOUNT, &self.account).body(Full::from(body))?;
        let (head, body) = self.client.request(request).await.context("send the call to moto")?.into_parts();
        Ok(Response::builder().status(head.status).body(Full::from(body.collect().await?.to_bytes()))?)
    }
}

/// Returns the certificate that a call names; none for a list of all.
fn resources(body: &Bytes) -> Vec<Resource> {
    let parameters: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let arn = parameters["CertificateArn"].as_str().map(str::to_owned);
    arn.into_iter().map(|arn| Resource { arn, tags: Tags::new() }).collect()
}

fn refusal(status: u16, code: &str, message: &str) -> Result<Response<Full<Bytes>>> {
    let body = serde_json::json!({ "__type": code, "message": message }).to_string();
    Ok(Response::builder().status(StatusCode::from_u16(status)?).body(Full::from(body))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_the_json_protocol_name_their_action_in_a_header() {
        let mut headers = HeaderMap::new();
        assert_eq!(action(&headers), None);
        headers.insert(TARGET, "CertificateManager.ListCertificates".parse().unwrap());
        assert_eq!(action(&headers), Some("ListCertificates"));
        let arn = "arn:aws:acm:r:1:certificate/1";
        let named = resources(&Bytes::from(format!("{{\"CertificateArn\": \"{arn}\"}}")));
        assert_eq!(named, [Resource { arn: arn.into(), tags: Tags::new() }]);
        assert_eq!(resources(&Bytes::from("{}")), []);
    }
}
