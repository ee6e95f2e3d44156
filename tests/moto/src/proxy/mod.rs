//! The proxy in front of moto: counts calls by action, injects the faults of tests, and adds behaviour of AWS that moto
//! lacks.

mod json;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::aws::{Aws, Service};
use crate::call::Call;
use crate::denials::Denials;
use crate::fault::{ArmedFaults, Effect, Fault, is_change};
use crate::model::{Existing, Model, Quota};
use crate::reach::{self, Reachability};
use crate::{REGION, form, iam, xml};

/// The header that selects the account in moto.
const ACCOUNT: HeaderName = HeaderName::from_static("x-moto-account-id");

/// An endpoint of AWS's services for one account; it serves until it is dropped.
pub struct Proxy {
    address: SocketAddr,
    account: String,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

struct Shared {
    moto: SocketAddr,
    account: HeaderValue,
    client: Client<HttpConnector, Full<Bytes>>,
    /// Access to the account for the rules of the model.
    aws: Aws,
    state: Mutex<State>,
    model: Arc<Model>,
    reachability: Arc<Reachability>,
    denials: Denials,
}

#[derive(Default)]
struct State {
    armed: ArmedFaults,
    /// Calls that returned success and are executed later.
    pending: usize,
    calls: BTreeMap<String, u64>,
    /// Ids that reads do not find yet, with the number of these reads.
    hidden: BTreeMap<String, u64>,
    blackholes: BTreeSet<String>,
    /// Targets that are reported as being in their first health checks; moto reports all as healthy.
    in_first_checks: BTreeSet<String>,
    /// The instance whose metadata are served.
    instance: Option<String>,
    /// Requested changes, in order: the action and its parameters.
    changes: Vec<Change>,
    /// The policy that calls are checked against; all are allowed without one.
    policy: Option<iam::Policy>,
    /// Load balancers get the DNS names of Network Load Balancers.
    network_names: bool,
}

type Change = (String, Vec<(String, String)>);

impl Proxy {
    /// Serves an account of a server.
    ///
    /// # Errors
    /// If no port can be listened on.
    pub(crate) async fn start(moto: SocketAddr, account: String, aws: Aws) -> Result<Self> {
        let (model, reachability) = (Model::new(aws.clone()), Reachability::new(aws.clone()));
        Self::serve(moto, account, aws, (Arc::new(model), Arc::new(reachability))).await
    }

    /// Serves the same account to another client. Its calls are counted separately, and no faults or policies of this
    /// endpoint apply to them.
    ///
    /// # Errors
    /// If no port can be listened on.
    pub async fn for_another_client(&self) -> Result<Self> {
        let Shared { moto, aws, model, reachability, .. } = &*self.shared;
        Self::serve(*moto, self.account.clone(), aws.clone(), (model.clone(), reachability.clone())).await
    }

    async fn serve(
        moto: SocketAddr,
        account: String,
        aws: Aws,
        (model, reachability): (Arc<Model>, Arc<Reachability>),
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listen for the proxy in front of moto")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            moto,
            account: HeaderValue::from_str(&account).context("an account is twelve digits")?,
            client: Client::builder(TokioExecutor::new()).build_http(),
            model,
            reachability,
            denials: Denials::default(),
            aws,
            state: Mutex::default(),
        });
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, shared.clone()));
        Ok(Self { address, account, shared, _serving: serving })
    }

    /// Returns the endpoint.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the endpoint's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the account that is served.
    pub fn account(&self) -> &str {
        &self.account
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// Injects a fault from now on.
    pub fn arm(&self, fault: Fault) {
        self.state().armed.arm(fault);
    }

    /// Removes all faults, and makes ids visible that [`Proxy::hide`] has hidden.
    pub fn disarm(&self) {
        let mut state = self.state();
        state.armed.disarm();
        state.hidden.clear();
    }

    /// Returns the number of calls to which an armed fault was applied. A test of a fault should check, before it calls
    /// [`Proxy::disarm`], that the number is not 0.
    pub fn faults_applied(&self) -> u64 {
        self.state().armed.applied()
    }

    /// Returns the number of calls that returned success and are executed later.
    pub fn pending(&self) -> usize {
        self.state().pending
    }

    /// Hides an id or a name from the next `reads` that name it, as if AWS had not distributed it yet. Reads that list
    /// everything find it.
    pub fn hide(&self, id: &str, reads: u64) {
        self.state().hidden.insert(id.to_owned(), reads);
    }

    /// Serves the metadata of this instance, as if the caller ran on it.
    pub fn serve_metadata_of(&self, instance: &str) {
        self.state().instance = Some(instance.to_owned());
    }

    /// Reports routes to this instance as blackholes.
    pub fn blackhole(&self, instance: &str) {
        self.state().blackholes.insert(instance.to_owned());
    }

    /// Gives load balancers the DNS names that AWS gives to Network Load Balancers; moto gives them those of Classic
    /// Load Balancers.
    pub fn name_network_balancers(&self) {
        self.state().network_names = true;
    }

    /// Allows only calls that a policy allows.
    pub fn enforce(&self, policy: iam::Policy) {
        self.state().policy = Some(policy);
    }

    /// Returns the denied accesses: the action and the resource.
    pub fn denied(&self) -> Vec<(String, String)> {
        self.shared.denials.all()
    }

    /// Lets the test succeed although accesses are denied, for this reason. By default, they fail the test at its end.
    pub fn expect_denials(&self, reason: &str) {
        self.shared.denials.expect(reason);
    }

    pub(crate) fn denials(&self) -> Denials {
        self.shared.denials.clone()
    }

    /// Returns the parameters of the calls of a writing action, in order. moto does not store all of them.
    pub fn requests(&self, action: &str) -> Vec<Vec<(String, String)>> {
        let state = self.state();
        let requested = state.changes.iter().filter(|(known, _)| known == action);
        requested.map(|(_, parameters)| parameters.clone()).collect()
    }

    /// Sets whether a target is in its first health checks; moto reports all as healthy.
    pub fn set_in_first_checks(&self, target: &str, is_in_first_checks: bool) {
        let mut state = self.state();
        if is_in_first_checks {
            state.in_first_checks.insert(target.to_owned());
        } else {
            state.in_first_checks.remove(target);
        }
    }

    /// Stops the checks of reachability, for this reason. By default, the health of targets follows from security
    /// groups, and a change that cuts off a registered target fails the test.
    pub fn ignore_reachability(&self, reason: &str) {
        self.shared.reachability.ignore(reason);
    }

    /// Sets the load balancers whose users open the targets' security groups themselves, by the beginnings of their
    /// names: their targets count as reached.
    pub fn open_by_hand(&self, names: BTreeSet<String>) {
        self.shared.reachability.set_opened(names);
    }

    /// Returns targets that a change cut off while they were registered, with the change.
    pub fn gaps(&self) -> Vec<String> {
        self.shared.reachability.gaps()
    }

    /// Returns the registered targets that no load balancer reaches now, unless reachability is ignored; with a DNS
    /// name only those of the load balancer that has it.
    ///
    /// # Errors
    /// If moto refuses a read.
    pub async fn unreached(&self, dns: Option<&str>) -> Result<Vec<String>> {
        if self.shared.reachability.is_enabled() {
            Ok(reach::names_of_unreached(self.shared.reachability.snapshot(dns).await?))
        } else {
            Ok(Vec::new())
        }
    }

    /// Returns the checks of reachability.
    pub(crate) fn reachability(&self) -> Arc<Reachability> {
        self.shared.reachability.clone()
    }

    /// Delays the visibility of each resource that is created from now on. The first `reads` responses that should
    /// contain it omit it; as many later ones omit some or all of its tags. 0 ends all delays.
    pub fn delay_visibility(&self, reads: u64) {
        self.shared.model.delay_visibility(reads);
    }

    /// Omits a resource from the next `lists` that do not name it.
    pub fn omit_from_lists(&self, id: &str, lists: u64) {
        self.shared.model.omit_from_lists(id, lists);
    }

    /// Hides a Classic Load Balancer from the next reads.
    pub fn hide_classic(&self, name: &str, reads: u64) {
        self.shared.model.hide_classic(name, reads);
    }

    /// Keeps new load balancers in the state provisioning for this number of listings.
    pub fn delay_provisioning(&self, listings: u64) {
        self.shared.model.delay_provisioning(listings);
    }

    /// Makes the setup of the next load balancers fail, this number of times.
    pub fn fail_setup(&self, count: u64) {
        self.shared.model.fail_setup(count);
    }

    /// Keeps the network interfaces of a deleted load balancer for this number of calls that read them; the default is
    /// 2.
    pub fn keep_interfaces(&self, calls: u64) {
        self.shared.model.keep_interfaces(calls);
    }

    /// Connects consumers to all endpoint services, or disconnects them. AWS refuses to delete one with consumers.
    pub fn connect_consumers(&self, connected: bool) {
        self.shared.model.connect_consumers(connected);
    }

    /// Sets a quota of the account; the default is that of a new account.
    pub fn set_quota(&self, quota: Quota, limit: usize) {
        self.shared.model.set_quota(quota, limit);
    }

    /// Limits the members of a page; the default is the maximum of AWS.
    pub fn limit_pages(&self, members: usize) {
        self.shared.model.limit_pages(members);
    }

    /// Returns the number of calls by action, since the start.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.state().calls.clone()
    }

    /// Returns the number of calls of one action, since the start.
    pub fn calls_of(&self, action: &str) -> u64 {
        self.state().calls.get(action).copied().unwrap_or_default()
    }

    /// Returns the number of calls that change something, since the start.
    pub fn changes(&self) -> u64 {
        self.state().calls.iter().filter(|(action, _)| is_change(action)).map(|(_, count)| count).sum()
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        // A connection that was reset before it was accepted is not this server's failure.
        if let Ok((stream, _)) = accepted {
            connections.spawn(connection(stream, shared.clone()));
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(|request| shared.respond(request));
    // The connection ends with an error when a response is dropped intentionally, or the client disconnects.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Responds to a call; an error closes the connection.
    async fn respond(self: &Arc<Self>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
        let (head, body) = request.into_parts();
        if head.uri.path().starts_with("/latest/") {
            return self.metadata(head.uri.path());
        }
        let body = body.collect().await?.to_bytes();
        if let Some(action) = json::action(&head.headers) {
            return self.respond_json(action.to_owned(), &head.headers, body).await;
        }
        let pairs = form::read(&body);
        let mut call = Call { path: head.uri, headers: head.headers, pairs };
        let action = call.value("Action").to_owned();
        let effect = {
            let mut state = self.state();
            *state.calls.entry(action.clone()).or_default() += 1;
            if is_change(&action) {
                state.changes.push((action.clone(), call.pairs.clone()));
            } else {
                state.replace_hidden(&mut call);
            }
            state.armed.effect_on(&action)
        };
        if let Some((needed, resource)) = self.denied(&call, &action).await? {
            let code = if call.is_ec2() { "UnauthorizedOperation" } else { "AccessDenied" };
            let message = format!("not authorized to perform: {needed} on resource: {resource}");
            self.denials.add(needed, resource);
            return refusal(&call, 403, code, &message);
        }
        if action == "DeleteLoadBalancer" {
            let names = call.pairs.iter().filter(|(field, _)| field == "LoadBalancerName");
            names.for_each(|(_, name)| self.reachability.delete_classic(name));
        }
        let before = self.reachability.before(&action).await?;
        let response = self.apply_effect(&call, &action, effect).await;
        if let Some(before) = before {
            self.reachability.after(&action, &before).await?;
        }
        response
    }

    /// Executes a call if the rules of AWS allow it.
    async fn perform(&self, call: &Call) -> Result<Response<Full<Bytes>>> {
        if is_change(call.action()) {
            match self.model.existing(call).await? {
                Existing::Nothing => {}
                Existing::Same(text) => return response(StatusCode::OK, self.network_names(text)),
                Existing::Other((code, message)) => return refusal(call, 400, code, &message),
            }
            if let Some((code, message)) = self.model.refusal(call).await? {
                return refusal(call, 400, code, &message);
            }
        }
        self.forward(call).await
    }

    /// Executes a call with the effect of a fault, if there is one; an error closes the connection.
    async fn apply_effect(
        self: &Arc<Self>,
        call: &Call,
        action: &str,
        effect: Option<Effect>,
    ) -> Result<Response<Full<Bytes>>> {
        match effect {
            None => self.perform(call).await,
            Some(Effect::Refuse { status, code, message }) => refusal(call, status, &code, &message),
            Some(Effect::Throttle { retry_after }) => {
                let code = if call.is_ec2() { "RequestLimitExceeded" } else { "Throttling" };
                let mut response = refusal(call, 503, code, "Request limit exceeded.")?;
                if let Some(seconds) = retry_after {
                    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
                }
                Ok(response)
            }
            Some(Effect::Outage) => refusal(call, 500, "InternalError", "An internal error has occurred"),
            Some(Effect::ResponseLost) => {
                self.perform(call).await?;
                Err(anyhow!("the response to {action} is lost"))
            }
            Some(Effect::Slow(time)) => {
                let response = self.perform(call).await;
                tokio::time::sleep(time).await;
                response
            }
            Some(Effect::Held(hold)) => {
                let response = self.perform(call).await;
                hold.wait().await;
                response
            }
            Some(Effect::Pending(time)) => {
                let (shared, later) = (self.clone(), call.clone());
                self.state().pending += 1;
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    // An error is not reported: the response was sent before.
                    let _ = shared.perform(&later).await;
                    shared.state().pending -= 1;
                });
                let done = format!(
                    "<{action}Response><{action}Result/><return>true</return><ResponseMetadata><RequestId>pending</RequestId>\
                     </ResponseMetadata></{action}Response>"
                );
                response(StatusCode::OK, done)
            }
        }
    }

    /// Serves the parts of the metadata service that controllers read.
    fn metadata(&self, path: &str) -> Result<Response<Full<Bytes>>> {
        let instance = self.state().instance.clone();
        match (path, instance) {
            ("/latest/api/token", Some(_)) => {
                let token = Response::builder().header("x-aws-ec2-metadata-token-ttl-seconds", "21600");
                Ok(token.body(Full::from("token"))?)
            }
            ("/latest/meta-data/instance-id", Some(id)) => response(StatusCode::OK, id),
            _ => response(StatusCode::NOT_FOUND, String::new()),
        }
    }

    /// Returns the access of a call that the policy denies, if there is one.
    async fn denied(&self, call: &Call, action: &str) -> Result<Option<(String, String)>> {
        let Some(policy) = self.state().policy.clone() else { return Ok(None) };
        let ec2 = call.is_ec2();
        let mut known = BTreeMap::new();
        if is_change(action) {
            for id in iam::checked_ids(action, &call.pairs) {
                let tags = self.tags(&id).await;
                known.insert(id, tags);
            }
        }
        let accesses = iam::accesses(ec2, action, &call.pairs, &known);
        Ok(accesses.into_iter().find_map(|access| {
            let resource = policy.denies(&access)?;
            Some((access.action, resource))
        }))
    }

    /// Returns the tags of a resource; none if it does not exist.
    async fn tags(&self, id: &str) -> iam::Tags {
        let classic = iam::classic_name(id);
        let (service, parameter, list, names) = match id.starts_with("arn:") {
            true if classic.is_some() => {
                (Service::Classic, ("LoadBalancerNames.member.1", ""), "TagDescriptions/member/Tags", ["Key", "Value"])
            }
            true => (Service::Elb, ("ResourceArns.member.1", ""), "TagDescriptions/member/Tags", ["Key", "Value"]),
            false => (Service::Ec2, ("Filter.1.Value.1", "resource-id"), "tagSet", ["key", "value"]),
        };
        let mut parameters = vec![(parameter.0, classic.unwrap_or(id))];
        if !parameter.1.is_empty() {
            parameters.push(("Filter.1.Name", parameter.1));
        }
        let found = self.aws.list(service, "DescribeTags", &parameters, list).await.unwrap_or_default();
        found.iter().map(|tag| (tag.text(names[0]).to_owned(), tag.text(names[1]).to_owned())).collect()
    }

    /// Forwards a call to moto, and converts the response to the response of AWS.
    async fn forward(&self, call: &Call) -> Result<Response<Full<Bytes>>> {
        let mut requested = call.clone();
        self.model.prepare(&mut requested);
        let path = call.path.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::builder().method(Method::POST).uri(format!("http://{}{path}", self.moto));
        for (name, value) in &call.headers {
            if ![HOST, CONTENT_LENGTH, TRANSFER_ENCODING].contains(name) {
                request = request.header(name, value);
            }
        }
        let request = request.header(ACCOUNT, &self.account).body(Full::from(form::write(&requested.pairs)))?;
        let (head, body) = self.client.request(request).await.context("send the call to moto")?.into_parts();
        if is_change(call.action()) {
            self.aws.count_change();
        }
        let text = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
        let text = if head.status.is_success() { self.rewrite(call, text).await? } else { text };
        response(head.status, text)
    }

    async fn rewrite(&self, call: &Call, text: String) -> Result<String> {
        let text = self.model.rewrite(call, text);
        Ok(match call.action() {
            "DescribeRouteTables" => self.state().blackholes.iter().fold(text, |text, id| xml::blackhole(&text, id)),
            "CreateLoadBalancer" | "DescribeLoadBalancers" => self.network_names(text),
            "DescribeTargetHealth" => {
                let text = self.reachability.health(call.value("TargetGroupArn"), text).await?;
                self.state().in_first_checks.iter().fold(text, |text, target| xml::in_first_checks(&text, target))
            }
            _ => text,
        })
    }

    /// Returns a response with the DNS names of Network Load Balancers, if a test enabled them.
    fn network_names(&self, text: String) -> String {
        if self.state().network_names {
            text.replace(&format!(".{REGION}.elb.amazonaws.com"), &format!(".elb.{REGION}.amazonaws.com"))
        } else {
            text
        }
    }
}

impl State {
    /// Replaces hidden ids in a read by ids that do not exist.
    fn replace_hidden(&mut self, call: &mut Call) {
        for (hidden, remaining) in &mut self.hidden {
            let named: Vec<_> = call.pairs.iter_mut().filter(|(_, value)| value == hidden).collect();
            if named.is_empty() || *remaining == 0 {
                continue;
            }
            *remaining -= 1;
            for (_, value) in named {
                *value = missing_id(value);
            }
        }
    }
}

/// Returns an id or name of the same kind that no resource has.
fn missing_id(id: &str) -> String {
    match id.split_once('-') {
        Some((kind, rest)) if rest.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{kind}-{}", "0".repeat(rest.len()))
        }
        _ => format!("missing-{id}"),
    }
}

fn response(status: StatusCode, text: String) -> Result<Response<Full<Bytes>>> {
    Ok(Response::builder().status(status).header("content-type", "text/xml").body(Full::from(text))?)
}

/// Returns an error in the format of the called service.
fn refusal(call: &Call, status: u16, code: &str, message: &str) -> Result<Response<Full<Bytes>>> {
    let error = format!("<Code>{code}</Code><Message>{message}</Message>");
    let text = if call.is_ec2() {
        format!("<Response><Errors><Error>{error}</Error></Errors><RequestID>proxy</RequestID></Response>")
    } else {
        format!("<ErrorResponse><Error><Type>Sender</Type>{error}</Error><RequestId>proxy</RequestId></ErrorResponse>")
    };
    response(StatusCode::from_u16(status)?, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_resource_is_not_found_for_a_number_of_reads() {
        let mut state = State { hidden: [("i-0a".to_owned(), 2)].into(), ..State::default() };
        let call = Call::of("DescribeInstances", &[("InstanceId.1", "i-0a"), ("InstanceId.2", "i-0b")]);
        for expected in ["i-00", "i-00", "i-0a"] {
            let mut call = call.clone();
            state.replace_hidden(&mut call);
            assert_eq!((call.value("InstanceId.1"), call.value("InstanceId.2")), (expected, "i-0b"));
        }
        assert_eq!(missing_id("ip-10-0-0-1.ec2.internal"), "missing-ip-10-0-0-1.ec2.internal");
    }
}
