//! The options of the HTTPS port and the content of `/configz`, from the command line.

use std::time::Duration;

use component::serving::{effective, serve_options};
use runtime::metrics::{AllowedValues, Restrictions};
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
fn restrictions_on_metrics_follow_from_the_flags() {
    let read = |line: &[&str]| component::restrictions::read(&options(line).values);
    assert_eq!(read(&[]).expect("read"), Restrictions::default());
    let values = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    let labels = |label: &str, of: &[&str]| AllowedValues::from([(label.to_owned(), values(of))]);
    let line = [
        "--disabled-metrics=b_total,a:b",
        "--disabled-metrics=b_total,c",
        "--allow-metric-labels=m,l=x,y",
        "--allow-metric-labels=n,l=x",
        "--allow-metric-labels=m,l=z",
        "--show-hidden-metrics-for-version=1.36",
    ];
    let expected = Restrictions {
        disabled: ["a:b", "b_total", "c"].map(str::to_owned).into(),
        // A later list replaces an earlier one for the same label.
        allowed: [("m".to_owned(), labels("l", &["z"])), ("n".to_owned(), labels("l", &["x"]))].into(),
        shows_hidden: true,
    };
    assert_eq!(read(&line).expect("read"), expected);

    let manifest = std::env::temp_dir().join(format!("kcm-metric-labels-{}", std::process::id()));
    let flag = format!("--allow-metric-labels-manifest={}", manifest.display());
    std::fs::write(&manifest, "").expect("written");
    assert_eq!(read(&[&flag]).expect("an empty manifest"), Restrictions::default());
    std::fs::write(&manifest, "\"m,l\": \"x,y\"\n").expect("written");
    let allowed = [("m".to_owned(), labels("l", &["x", "y"]))].into();
    assert_eq!(read(&[&flag]).expect("read"), Restrictions { allowed, ..Restrictions::default() });
    std::fs::write(&manifest, "m: x\n").expect("written");
    let refused = format!("{:#}", read(&[&flag]).expect_err("refused"));
    assert_eq!(refused, format!("{flag}: must have keys metric,label, but got \"m\""));
    std::fs::remove_file(&manifest).expect("removed");
    let missing = format!("{:#}", read(&[&flag]).expect_err("refused"));
    assert!(missing.starts_with(&format!("{flag}: cannot be read; ")), "{missing}");
}

#[test]
fn configz_has_every_flag_except_help_and_version() {
    let shown = effective(&options(&["--vmodule=a=3", "--controllers=-job", "--kube-api-qps=7"]));
    assert_eq!(shown.as_object().expect("an object").len(), FLAGS.len() - 2);
    assert_eq!(shown["vmodule"], json!(["a=3"]));
    assert_eq!(shown["leader-elect-lease-duration"], json!("15s"));
    assert_eq!(shown["min-resync-period"], json!("12h0m0s"));
    assert_eq!(shown["kube-api-qps"], json!(7.0));
    assert_eq!(shown["bind-address"], json!("0.0.0.0"));
}
