//! The crate `runtime` on a real API server, without kcm: an operator written with its SDK, and its HTTPS server.

mod sdk;
mod serve;
