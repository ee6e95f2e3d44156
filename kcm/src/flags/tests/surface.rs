//! The options of the HTTPS port and the content of `/configz`, from the command line.

use std::time::Duration;

use component::serving::{effective, serve_options};
use serde_json::json;

use super::*;

#[test]
fn serve_options_follow_from_the_flags() {
    assert!(serve_options(&options(&["--secure-port=0"]), "kcm").is_none());
    let served = serve_options(&options(&[]), "kcm").expect("served by default");
    assert_eq!((served.port, served.tls.pair_name.as_str()), (10257, COMPONENT.name));
    assert_eq!(served.authorization.always_allow_paths, ["/healthz", "/readyz", "/livez"]);
    assert_eq!(served.authentication.token_ttl, Duration::from_secs(10));
    assert_eq!(served.authentication.request_header.username_headers, ["x-remote-user"]);
    let served = serve_options(
        &options(&[
            "--bind-address=127.0.0.1",
            "--cert-dir=/pki",
            "--client-ca-file=/ca",
            "--tls-curve-preferences=29",
        ]),
        "kcm",
    )
    .expect("served");
    assert_eq!(served.tls.cert_dir, Some("/pki".into()));
    assert_eq!(served.authentication.client_ca_file, Some("/ca".into()));
    assert_eq!(served.tls.curves, [29]);
}

#[test]
fn configz_has_every_flag() {
    let shown = effective(&options(&["--vmodule=a=3", "--controllers=-job", "--kube-api-qps=7"]));
    assert_eq!(shown.as_object().expect("an object").len(), FLAGS.len() - 2);
    assert_eq!(shown["vmodule"], json!(["a=3"]));
    assert_eq!(shown["leader-elect-lease-duration"], json!("15s"));
    assert_eq!(shown["min-resync-period"], json!("12h0m0s"));
    assert_eq!(shown["kube-api-qps"], json!(7.0));
    assert_eq!(shown["bind-address"], json!("0.0.0.0"));
}
