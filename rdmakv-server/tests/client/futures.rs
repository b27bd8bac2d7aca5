//! Operations as futures.

use crate::by_hand::Running;
use crate::client;
use crate::common::Server;
use rdmakv_client::future::AsyncClient;
use rdmakv_client::{Client, Error, Options};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

async fn work(client: &AsyncClient) {
    let stored: Vec<_> =
        (0..50_u8).map(|key| client.set([b'k', b'0' + key], vec![key; 500 * key as usize], ())).collect();
    for stored in stored {
        assert!(stored.await.unwrap().is_stored());
    }
    for _ in 0..3 {
        let got: Vec<_> = (0..50_u8).map(|key| client.get([b'k', b'0' + key])).collect();
        // In another order than they come.
        for (key, got) in got.into_iter().enumerate().rev() {
            assert_eq!(&got.await.unwrap().unwrap()[..], vec![key as u8; 500 * key]);
        }
    }
    assert!(client.delete("k1").await.unwrap() && client.get("k1").await.unwrap().is_none());
    // One that is dropped is done all the same.
    drop(client.set("k2", vec![9], ()));
    assert_eq!(client.get("k2").await.unwrap().unwrap(), [9]);
    assert!(matches!(client.get("").await, Err(Error::Key { .. })));
}

#[test]
fn futures_end_over_sockets_and_fabrics() {
    let tcp = Server::on_a_free_port(&[]);
    let (shm, iwarp) = (Running::over_shm(), Running::over_iwarp());
    for server in [&tcp.address("tcp"), &shm.address, &iwarp.address] {
        let client = AsyncClient::new(client([server]));
        client.block_on(work(&client));
        assert_eq!(client.into_inner().open(), 0);
    }
}

#[test]
fn futures_end_over_several_servers_at_once() {
    let tcp = Server::on_a_free_port(&[]);
    let shm = Running::over_shm();
    let client = AsyncClient::new(client([&tcp.address("tcp"), &shm.address]));
    client.block_on(work(&client));
}

#[test]
fn a_future_that_nobody_answers_ends_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let options = Options { timeout: std::time::Duration::from_millis(100), ..Options::default() };
    let client = Client::with_options([listener.local_addr().unwrap().to_string()], options).unwrap();
    let client = AsyncClient::new(client);
    let mut polled = pin!(client.get("a"));
    assert!(matches!(polled.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
    assert!(matches!(client.block_on(client.get("b")), Err(Error::TimedOut { .. })));
    assert!(matches!(polled.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(Error::TimedOut { .. }))));
}
