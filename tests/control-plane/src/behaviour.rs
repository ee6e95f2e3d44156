//! Scripts for fake kubelets: one annotation decides the behaviour of a pod or a node.
//!
//! Without the annotation, a pod bound to a node is soon Running and Ready, a Job's pod then succeeds, and a deleted
//! pod is removed immediately. Pods get the annotation from their template. A change of the annotation on an existing
//! object changes its behaviour from then on.

/// The annotation whose value is one of this module's constants from [`FAIL`] on.
pub const BEHAVIOUR: &str = "test.kcm/behaviour";

/// The annotation with the exit code of a pod with the behaviour [`FAIL`]: a decimal number, 1 by default.
pub const EXIT_CODE: &str = "test.kcm/exit-code";

/// Pod: every container exits with [`EXIT_CODE`], the phase becomes Failed.
pub const FAIL: &str = "fail";

/// Pod: every container exits with code 0, the phase becomes Succeeded, for any owner of the pod.
pub const SUCCEED: &str = "succeed";

/// Pod: stays Pending on its node.
pub const PENDING: &str = "pending";

/// Pod: Running and not Ready. Node: the Ready condition is False.
pub const UNREADY: &str = "unready";

/// Pod: Running and Ready, even if it was [`UNREADY`] before, or if a Job owns it (otherwise such a pod succeeds).
pub const READY: &str = "ready";

/// Pod: alternates between ready and not ready, about once a second.
pub const FLAP: &str = "flap";

/// Pod: its kubelet evicts it; the phase becomes Failed.
pub const EVICTED: &str = "evicted";

/// Pod: like [`READY`], and never removed after it was deleted.
pub const TERMINATING: &str = "terminating";
