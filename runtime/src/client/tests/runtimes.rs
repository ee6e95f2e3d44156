//! Requests of the control lane do not depend on the threads of the controllers.

use std::sync::mpsc::Sender;

use tokio::runtime::{Builder, Runtime};

use super::*;

/// Threads of the controllers.
const THREADS: usize = 2;

fn threads(count: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(count).enable_all().build().expect("threads")
}

/// Occupies all threads of the controllers until the returned senders are dropped, as a computation without an await
/// does.
fn block(controllers: &Runtime) -> Vec<Sender<()>> {
    let blocked = Arc::new(std::sync::Barrier::new(THREADS + 1));
    let block_one = |_| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let blocked = blocked.clone();
        controllers.spawn(async move {
            blocked.wait();
            let _ = receiver.recv();
        });
        sender
    };
    let senders = (0..THREADS).map(block_one).collect();
    blocked.wait();
    senders
}

#[test]
fn control_request_is_answered_while_controllers_block_their_threads() {
    const LIMIT: Duration = Duration::from_secs(30);
    for protocol in ["h2", "http/1.1"] {
        let (server, controllers) = (threads(1), threads(THREADS));
        let control = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let bed = server.block_on(Bed::new(User::TokenFile, &[protocol], always(200)));
        let options = ConnectOptions { control_runtime: Some(control.handle().clone()), ..bed.options() };
        let clients = controllers.block_on(async { connect(&options).await.expect("clients") });
        let lease = || clients.control.send(request(Method::GET, "/lease").map(Body::from));
        control.block_on(async {
            // A controller requests a token, which opens the connection.
            let clients = clients.clone();
            let token = controllers
                .spawn(async move { clients.control.send(request(Method::POST, "/token").map(Body::from)).await });
            assert_eq!(token.await.expect("no panic").expect("a response").status(), 200, "{protocol}");
            let _blocked = block(&controllers);
            let response = tokio::time::timeout(LIMIT, lease()).await;
            let response = response.unwrap_or_else(|_| panic!("{protocol}: it waits for the controllers"));
            assert_eq!(response.expect("a response").status(), 200, "{protocol}");
        });
        controllers.shutdown_background();
    }
}
