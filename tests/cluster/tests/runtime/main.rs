//! The runtime without a manager, on the real API server: operators written with it, and what its processes serve.

mod sdk;
mod serve;
