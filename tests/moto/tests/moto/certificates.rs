//! Certificates of ACM, found by host names.

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cluster_tests::Space;
use moto::{Effect, Fault, Moto, Quota, Service};
use providers::{ErrorKind, LoadBalancerSpec, PlannedChange};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::json;

use crate::balancers::{AccountResources, delete, new_process, port, settle, spec, targets, texts};
use crate::bed::CLUSTER;

/// Imports a certificate that is valid until the end of a year; returns its ARN.
async fn import(moto: &Moto, names: &[&str], year: i32, tags: &[(&str, &str)]) -> Result<String> {
    let mut parameters = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    parameters.not_after = date_time_ymd(year, 12, 31);
    let key = KeyPair::generate()?;
    let certificate = parameters.self_signed(&key)?.pem();
    let tags: Vec<_> = tags.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect();
    let request = json!({
        "Certificate": STANDARD.encode(certificate),
        "PrivateKey": STANDARD.encode(key.serialize_pem()),
        "Tags": tags,
    });
    let imported = moto.aws.acm("ImportCertificate", &request).await?;
    imported["CertificateArn"].as_str().map(str::to_owned).context("no certificate")
}

/// Returns the certificates of the only load balancer's listeners.
async fn certificates(moto: &Moto) -> Result<Vec<String>> {
    let balancer = AccountResources::read(moto).await?.balancers.pop().context("no load balancer")?;
    let listeners = moto.aws.call(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", &balancer)]).await?;
    let arn = texts(&listeners, "ListenerArn").pop().context("no listener")?;
    let found = moto.aws.call(Service::Elb, "DescribeListenerCertificates", &[("ListenerArn", &arn)]).await?;
    let mut found = texts(&found, "CertificateArn");
    found.extend(texts(&listeners, "CertificateArn"));
    found.sort();
    found.dedup();
    Ok(found)
}

fn sorted<const N: usize>(mut arns: [String; N]) -> Vec<String> {
    arns.sort();
    arns.into()
}

fn with_domains(of: &LoadBalancerSpec, domains: &str) -> LoadBalancerSpec {
    LoadBalancerSpec { id: of.id.clone(), ports: vec![port(443)], ..spec(1, &[("ssl-domains", domains)]) }
}

/// Certificates are found by name and by wildcard, a newer one replaces an older one, and ACM is read only for Services
/// that name hosts.
pub async fn listener_has_the_certificate_of_its_host_name(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let key = format!("kubernetes.io/cluster/{CLUSTER}");
    let consent = [(&*key, "shared")];
    let (wild, old) = (
        import(&moto, &["*.example.com"], 2090, &consent).await?,
        import(&moto, &["www.example.com"], 2040, &consent).await?,
    );
    import(&moto, &["www.example.com"], 2099, &[]).await?;
    let plain = spec(1, &[]);
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &plain, &all).await?;
    ensure!(moto.proxy.calls_of("ListCertificates") == 0, "{:?}", moto.proxy.calls());

    let www = with_domains(&plain, "WWW.example.com");
    settle(&moto, &*balancers, &www, &all).await?;
    ensure!(certificates(&moto).await? == [old.clone()], "{:?}, not {old}", certificates(&moto).await?);
    let both = with_domains(&plain, "www.example.com, api.example.com");
    moto.proxy.set_quota(Quota::Certificates, 0);
    let error = balancers.ensure(&both, &all).await.err().context("the quota of certificates was not exceeded")?;
    ensure!(error.kind == ErrorKind::Quota && error.message.contains("request a higher quota"), "{error}");
    ensure!(certificates(&moto).await? == [old.clone()], "the listener changed: {:?}", certificates(&moto).await?);
    moto.proxy.set_quota(Quota::Certificates, 25);
    settle(&moto, &*balancers, &both, &all).await?;
    let expected = sorted([old.clone(), wild.clone()]);
    ensure!(certificates(&moto).await? == expected, "{:?}, not {expected:?}", certificates(&moto).await?);
    ensure!(moto.proxy.calls_of("ListCertificates") == 1, "{:?}", moto.proxy.calls());
    let changes = moto.proxy.changes();
    settle(&moto, &*balancers, &both, &all).await?;
    ensure!(moto.proxy.changes() == changes, "changes without a reason: {:?}", moto.proxy.calls());

    let new = import(&moto, &["www.example.com"], 2050, &consent).await?;
    settle(&moto, &*new_process(&moto).await?, &both, &all).await?;
    let expected = sorted([new, wild]);
    ensure!(certificates(&moto).await? == expected, "{:?}, not {expected:?}", certificates(&moto).await?);
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    delete(&*balancers, &plain.id).await
}

/// A certificate needs its owner's consent, and ACM may fail: in both cases, the load balancer is not changed, but its
/// targets are still updated.
pub async fn certificate_without_consent_is_refused_with_the_fix(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let (few, all) = (targets(&instances[..1]), targets(&instances));
    let key = format!("kubernetes.io/cluster/{CLUSTER}");
    let first = import(&moto, &["www.example.com"], 2040, &[(&key, "shared")]).await?;
    let foreign = import(&moto, &["bank.example.org"], 2040, &[("team", "bank")]).await?;
    let balancers = new_process(&moto).await?;
    let one = with_domains(&spec(1, &[]), "www.example.com");
    settle(&moto, &*balancers, &one, &few).await?;
    for (host, fix) in [
        ("bank.example.org", format!("put the tag {key}=shared on it")),
        ("none.example.org", "use a name for which ACM has an issued certificate".to_owned()),
    ] {
        let wanted = with_domains(&one, host);
        let error = balancers.ensure(&wanted, &all).await.err().with_context(|| format!("{host} is served"))?;
        ensure!(error.message.contains(&fix) && error.message.contains(host), "{error}");
        let forecast = balancers.forecast(&wanted).await?;
        ensure!(forecast.change == PlannedChange::Refused && forecast.reasons[0].contains(&fix), "{forecast:?}");
    }
    moto.proxy.arm(Fault::always("ListCertificates", Effect::Outage));
    ensure!(
        balancers.ensure(&with_domains(&one, "bank.example.org"), &few).await.is_err(),
        "an outage of ACM was not reported"
    );
    moto.proxy.disarm();
    ensure!(certificates(&moto).await? == [first], "{:?}", certificates(&moto).await?);
    let group = AccountResources::read(&moto).await?.target_groups.pop().context("no target group")?;
    let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", &group)]).await?;
    ensure!(texts(&health, "Id") == [instances[0].id.clone()], "the targets are not updated: {health}");

    let tags = json!({"CertificateArn": foreign, "Tags": [{"Key": key, "Value": "shared"}]});
    moto.aws.acm("AddTagsToCertificate", &tags).await?;
    settle(&moto, &*balancers, &with_domains(&one, "bank.example.org"), &all).await?;
    ensure!(certificates(&moto).await? == [foreign], "{:?}", certificates(&moto).await?);
    delete(&*balancers, &one.id).await
}
