//! The HTTPS server of a manager, configured by its command line.

use std::path::PathBuf;
use std::sync::Arc;

use runtime::health_checks;
use runtime::manager::Manager;
use runtime::metrics::{Metrics, Restrictions};
use runtime::serve::{
    AuthenticationOptions, AuthorizationOptions, Check, Health, ProcessStatus, RequestHeaderOptions, ServeOptions,
    ServedContent, SetVerbosity, TlsOptions, Zpages, configz,
};
use runtime::telemetry::{BuildInfo, CompatibilityVersions, Controllers, Events, Features, Leadership, Stores};
use serde_json::{Map, Value, json};

use crate::assembly::Assembly;
use crate::flags::Options;
use crate::flags::value::{KUBE_VERSION, Type};

/// Returns the serving options; `None` with `--secure-port=0`.
pub fn serve_options(options: &Options, user_agent: &str) -> Option<ServeOptions> {
    let values = &options.values;
    let file = |flag| Some(values.get_str(flag)).filter(|file| !file.is_empty()).map(PathBuf::from);
    let texts = |flag| values.get_strings(flag).to_vec();
    let on = |gate| options.gates.enabled(gate);
    (options.secure_port != 0).then(|| ServeOptions {
        bind_address: options.bind_address,
        port: options.secure_port,
        share_port: values.get_bool("permit-port-sharing"),
        tls: TlsOptions {
            cert_file: file("tls-cert-file"),
            key_file: file("tls-private-key-file"),
            sni: texts("tls-sni-cert-key"),
            cert_dir: file("cert-dir"),
            pair_name: options.component.name.into(),
            min_version: values.get_str("tls-min-version").to_owned(),
            cipher_suites: texts("tls-cipher-suites"),
            curves: values.get_int32s("tls-curve-preferences").to_vec(),
        },
        http1_only: values.get_bool("disable-http2-serving"),
        http2_max_streams: u32::try_from(values.get_i64("http2-max-streams-per-connection")).unwrap_or(0),
        closes_unauthenticated_http2: on("UnauthenticatedHTTP2DOSMitigation"),
        authentication: AuthenticationOptions {
            kubeconfig: file("authentication-kubeconfig"),
            skip_lookup: values.get_bool("authentication-skip-lookup"),
            tolerate_lookup_failure: values.get_bool("authentication-tolerate-lookup-failure"),
            token_ttl: values.get_duration("authentication-token-webhook-cache-ttl"),
            client_ca_file: file("client-ca-file"),
            reads_certificate_uid: on("AllowParsingUserUIDFromCertAuth"),
            request_header: RequestHeaderOptions {
                client_ca_file: file("requestheader-client-ca-file"),
                allowed_names: texts("requestheader-allowed-names"),
                username_headers: texts("requestheader-username-headers"),
                uid_headers: texts("requestheader-uid-headers"),
                group_headers: texts("requestheader-group-headers"),
                extra_prefixes: texts("requestheader-extra-headers-prefix"),
            },
        },
        authorization: AuthorizationOptions {
            kubeconfig: file("authorization-kubeconfig"),
            always_allow_paths: texts("authorization-always-allow-paths"),
            authorized_ttl: values.get_duration("authorization-webhook-cache-authorized-ttl"),
            unauthorized_ttl: values.get_duration("authorization-webhook-cache-unauthorized-ttl"),
        },
        user_agent: user_agent.to_owned(),
    })
}

/// Returns the health checks, metrics and pages that a manager serves; the metrics with these restrictions.
pub fn served_content(
    options: &Options,
    built: &Assembly,
    set_verbosity: SetVerbosity,
    restrictions: Restrictions,
) -> ServedContent {
    let manager = &built.manager;
    let component = options.component;
    ServedContent {
        health: Arc::new(health(options, manager).restricted(restrictions.clone())),
        metrics: metrics(options, manager, restrictions),
        configz: configz(component.config_group, effective(options)),
        zpages: zpages(options),
        pages: manager.pages().to_vec(),
        page_runtime: Some(manager.runtime().clone()),
        explainer: Some(Arc::new(manager.explainer(component.name, built.key_kinds.clone(), built.finalizers.clone()))),
        set_verbosity: Some(set_verbosity).filter(|_| options.values.get_bool("profiling")),
    }
}

/// Returns `/flagz` and `/statusz` according to the gates.
fn zpages(options: &Options) -> Zpages {
    let component = options.component;
    let on = |gate| component.zpages && options.gates.enabled(gate);
    let mut paths = vec!["/configz", "/debug", "/healthz", "/livez", "/metrics", "/readyz"];
    let flags = on("ComponentFlagz").then(|| options.values.printed());
    if flags.is_some() {
        paths.push("/flagz");
        paths.sort_unstable();
    }
    let version = KUBE_VERSION.trim_start_matches('v');
    let status = on("ComponentStatusz")
        .then(|| ProcessStatus::new(version, format!("1.{}", options.gates.emulated_minor()), paths));
    Zpages { component: component.name, flags, status }
}

/// Returns the checks of the election, of each running controller, of the watches, of the controllers' threads, and,
/// for readiness, of the stores.
fn health(options: &Options, manager: &Manager) -> Health {
    let election = options.leader_elect.enabled.then(|| health_checks::leader_election(manager.fence()));
    let running = manager.controllers().map(|name| {
        let fence = manager.fence().clone();
        Check::new(name, move || fence.is_leader().then_some(Ok(())))
    });
    let registry = manager.registry();
    let always = [health_checks::watches(registry), health_checks::workers(manager.heartbeat())];
    let checks = election.into_iter().chain(running).chain(always).collect();
    Health::new(checks, vec![health_checks::stores(registry)])
}

fn metrics(options: &Options, manager: &Manager, restrictions: Restrictions) -> Arc<Metrics> {
    let metrics = manager.metrics().clone();
    metrics.restrict(restrictions);
    metrics.collect(BuildInfo {
        git_version: options.reported_version.clone(),
        major: "1",
        minor: KUBE_VERSION.split('.').nth(1).unwrap_or_default(),
    });
    let gates = &options.gates;
    metrics.collect(CompatibilityVersions {
        binary: KUBE_VERSION.trim_start_matches('v').to_owned(),
        emulation: format!("1.{}", gates.emulated_minor()),
        min_compatibility: format!("1.{}", gates.min_compatibility_minor()),
    });
    metrics.collect(Features(gates.all().map(|(name, stage, is_on)| (name, stage.label(), is_on)).collect()));
    metrics.rest_client(&manager.clients().metrics);
    metrics.collect(manager.queues());
    if options.leader_elect.enabled {
        let lease = options.leader_elect.resource_name.clone();
        metrics.collect(Leadership { lease, fence: manager.fence().clone() });
    }
    let (running, fence) = (manager.work_counts(), manager.fence().clone());
    let component = options.component;
    let (manager_name, running_as) = (component.name, component.running_as);
    metrics.collect(Controllers { manager: manager_name, running_as, running, fence });
    metrics.collect(Stores { name: component.name, stores: manager.registry().stats() });
    metrics.collect(Events(manager.recorders().to_vec()));
    metrics
}

/// Returns every flag except `--help` and `--version` with its effective value. No value is a secret: flags only name
/// the files that hold them.
pub fn effective(options: &Options) -> Value {
    let values = &options.values;
    let value = |name: &'static str, kind: Type| match kind {
        Type::Bool => json!(values.get_bool(name)),
        Type::Int | Type::Int32 | Type::Level => json!(values.get_i64(name)),
        Type::Float32 | Type::Float64 => json!(values.get_f64(name)),
        // The form of upstream's `metav1.Duration`.
        Type::Duration => json!(values.duration_text(name)),
        Type::Text | Type::Version | Type::Quantity => json!(values.get_str(name)),
        Type::Ip => json!(values.get_ip(name)),
        Type::Strings | Type::CertKeys | Type::Gates | Type::PlainGates => json!(values.get_strings(name)),
        Type::Int32s => json!(values.get_int32s(name)),
        Type::Map => json!(values.get_map(name)),
        Type::VModule => {
            json!(options.vmodule.iter().map(|(file, level)| format!("{file}={level}")).collect::<Vec<_>>())
        }
    };
    let flags = values.flags().iter().filter(|flag| !matches!(flag.name, "help" | "version"));
    Value::Object(flags.map(|flag| (flag.name.to_owned(), value(flag.name, flag.kind))).collect::<Map<_, _>>())
}
