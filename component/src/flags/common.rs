//! The flags of every controller manager, which upstream's staging modules (controller-manager, apiserver,
//! component-base) add to both of upstream's managers. A binary adds its own.

crate::flags! {
    /// Profiling, and leader migration. Upstream: controller-manager,
    /// options.GenericControllerManagerConfigurationOptions.
    pub const PROCESS;
    "Debugging" {
        "contention-profiling": Bool = "false", NoEffect, "Record where workers block, when profiling is on";
        "profiling": Bool = "true", Effective, "Serve /debug/flags/v on the secure port; Go profiles (/debug/pprof) are not available";
    }
    "Leader-migration" {
        "enable-leader-migration": Bool = "false", NoEffect, "Migrate controllers between managers with a second Lease (leader migration)";
        "leader-migration-config": Text = "", NoEffect, "File with a LeaderMigrationConfiguration (controllermanager.config.k8s.io/v1alpha1); empty for the built-in configuration";
    }
}

crate::flags! {
    /// Controllers, the API server, the Lease. Upstream: controller-manager,
    /// options.GenericControllerManagerConfigurationOptions.
    pub const GENERIC;
    "Generic" {
        "cidr-allocator-type": Text = "RangeAllocator", NoEffect, "How pod CIDRs are allocated; only RangeAllocator is available";
        "controller-start-interval": Duration = "0s", Effective, "Pause between the starts of two controllers; each pause lasts between this time and twice this time";
        "controllers": Strings = "[*]", Effective, "Controllers to run: '*' for all that are on by default, 'foo' to switch foo on, '-foo' to switch it off; the first mention of a name decides";
        "kube-api-burst": Int32 = "30", Effective, "Requests to the API server in one burst, beyond --kube-api-qps";
        "kube-api-content-type": Text = "application/vnd.kubernetes.protobuf", NoEffect, "Media type of the requests to the API server; protobuf is used wherever the server supports it";
        "kube-api-qps": Float32 = "20", Effective, "Requests per second to the API server";
        "leader-elect": Bool = "true", Effective, "Work only while holding the Lease, so that several replicas may run";
        "leader-elect-lease-duration": Duration = "15s", Effective, "How long a candidate waits, after the last renewal that it observed, before it takes the Lease";
        "leader-elect-renew-deadline": Duration = "10s", Effective, "How long the leader tries to renew before it gives up; less than the lease duration";
        "leader-elect-resource-lock": Text = "leases", Effective, "Kind of object used as the lock; only leases";
        "leader-elect-resource-namespace": Text = "kube-system", Effective, "Namespace of the Lease";
        "leader-elect-retry-period": Duration = "2s", Effective, "Pause between two attempts to take or renew the Lease";
        "min-resync-period": Duration = "12h0m0s", Effective, "Minimum time before controllers receive all objects again; the actual time is random, at most twice as long; 0 for never";
        "node-sync-period": Duration = "0s", NoEffect, "Has no effect" deprecated "has no effect and will be removed";
        "use-service-account-credentials": Bool = "false", Effective, "Write with a separate service account for each controller";
    }
}

crate::flags! {
    /// The secure port, except for its number. Upstream: apiserver, options.SecureServingOptions.
    pub const SECURE_SERVING;
    "Secure serving" {
        "bind-address": Ip = "0.0.0.0", Effective, "Address on which --secure-port listens; 0.0.0.0 or :: for all interfaces";
        "cert-dir": Text = "", Effective, "Directory for generated certificates; ignored when --tls-cert-file and --tls-private-key-file are given";
        "disable-http2-serving": Bool = "false", Effective, "Serve HTTP/1.1 only";
        "http2-max-streams-per-connection": Int = "0", Effective, "Streams a client may have open in one HTTP/2 connection; 0 for the library's default";
        "permit-address-sharing": Bool = "false", Effective, "Listen with SO_REUSEADDR; true and false are the same, because it is always set";
        "permit-port-sharing": Bool = "false", Effective, "Listen with SO_REUSEPORT";
        "tls-cert-file": Text = "", Effective, "PEM certificate (and chain) for HTTPS; without it, a self-signed certificate is generated";
        "tls-cipher-suites": Strings = "[]", Effective, "Cipher suites of the server, by their IANA names; empty for the library's default";
        "tls-curve-preferences": Int32s = "[]", Effective, "Numbers of the key exchange groups that the server allows; empty for the library's default";
        "tls-min-version": Text = "", Effective, "Lowest TLS version: VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13";
        "tls-private-key-file": Text = "", Effective, "PEM private key of --tls-cert-file";
        "tls-sni-cert-key": CertKeys = "[]", Effective, "Certificate and key for the named hosts, as cert,key or cert,key:host,host; may be repeated";
    }
}

crate::flags! {
    /// Authentication and authorization. Upstream: apiserver, options.DelegatingAuthenticationOptions and
    /// DelegatingAuthorizationOptions.
    pub const ACCESS;
    "Authentication" {
        "authentication-kubeconfig": Text = "", Effective, "Kubeconfig for TokenReviews and for looking up client CAs; empty uses the pod's own credentials; outside a pod, requests with a token are anonymous";
        "authentication-skip-lookup": Bool = "false", Effective, "Do not look up missing authentication settings in the cluster";
        "authentication-token-webhook-cache-ttl": Duration = "10s", Effective, "How long the result of a TokenReview is cached";
        "authentication-tolerate-lookup-failure": Bool = "false", Effective, "Start even when authentication settings cannot be looked up; requests may then count as anonymous";
        "client-ca-file": Text = "", Effective, "CA bundle for client certificates; the common name becomes the user";
        "requestheader-allowed-names": Strings = "[]", Effective, "Common names of front proxies that may set user headers; empty allows all that --requestheader-client-ca-file signed";
        "requestheader-client-ca-file": Text = "", Effective, "CA bundle for front proxies: user headers are accepted only with a client certificate that it signed";
        "requestheader-extra-headers-prefix": Strings = "[x-remote-extra-]", Effective, "Prefixes of headers with extra user attributes";
        "requestheader-group-headers": Strings = "[x-remote-group]", Effective, "Headers with the user's groups";
        "requestheader-uid-headers": Strings = "[]", Effective, "Headers with the user's UID";
        "requestheader-username-headers": Strings = "[x-remote-user]", Effective, "Headers with the user's name";
    }
    "Authorization" {
        "authorization-always-allow-paths": Strings = "[/healthz,/readyz,/livez]", Effective, "HTTP paths that need no authorization";
        "authorization-kubeconfig": Text = "", Effective, "Kubeconfig for SubjectAccessReviews; empty uses the pod's own credentials; outside a pod, only --authorization-always-allow-paths are allowed";
        "authorization-webhook-cache-authorized-ttl": Duration = "10s", Effective, "How long a SubjectAccessReview that allows a request is cached";
        "authorization-webhook-cache-unauthorized-ttl": Duration = "10s", Effective, "How long a SubjectAccessReview that does not allow a request is cached";
    }
}

crate::flags! {
    /// Logging. Upstream: component-base, logs/api/v1.
    pub const LOGS;
    "Logs" {
        "log-flush-frequency": Duration = "5s", NoEffect, "Longest time before log lines are flushed; each line is written immediately";
        "log-json-info-buffer-size": Quantity = "0", NoEffect, "Bytes of JSON info lines to buffer when streams are split, such as 512, 1k, 2Ki; needs gate LoggingAlphaOptions";
        "log-json-split-stream": Bool = "false", Effective, "JSON errors to stderr, info lines to stdout; needs gate LoggingAlphaOptions";
        "log-text-info-buffer-size": Quantity = "0", NoEffect, "Bytes of text info lines to buffer when streams are split, such as 512, 1k, 2Ki; needs gate LoggingAlphaOptions";
        "log-text-split-stream": Bool = "false", Effective, "Text errors and warnings to stderr, info lines to stdout; needs gate LoggingAlphaOptions";
        "logging-format": Text = "text", Effective, "Form of log lines: text, or json (gate LoggingBetaOptions)";
        "v": Level = "0", Effective, "Verbosity of the log, 0 or more";
        "vmodule": VModule = "", Effective, "Verbosity per source file: comma-separated pattern=N pairs; text logs only";
    }
}

crate::flags! {
    /// The API server's address, and the flags of every program.
    pub const SERVER;
    "Misc" {
        "kubeconfig": Text = "", Effective, "Kubeconfig for the API server";
        "master": Text = "", Effective, "Address of the API server, instead of the kubeconfig's";
    }
    "Global" {
        "help": Bool = "false", Effective, "Print this help and exit";
        "version": Version = "false", Effective, "Print the version and exit; raw prints all parts; vX.Y.Z... reports that version instead";
    }
}
