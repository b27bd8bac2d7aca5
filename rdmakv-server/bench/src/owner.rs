//! The process of a server's socket, if the server runs on this host.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use procfs::net::{TcpState, tcp, tcp6, udp, udp6};
use procfs::process::{FDTarget, all_processes};

use rdmakv_client::{Fabric, ServerAddress, Socket};

use crate::target::Target;

/// Returns the process that listens there. None if the server is elsewhere, or hidden from us.
pub(crate) fn find(target: &Target) -> Option<i32> {
    let inodes = match target {
        Target::Unix(path) => return peer_of(path),
        Target::Tcp(place) => listening(place, true),
        Target::Udp(place) => listening(place, false),
        Target::Client(address) => return find_any(address),
    };
    owner(&inodes)
}

/// Tries each of its addresses.
fn find_any(address: &ServerAddress) -> Option<i32> {
    let sockets = address.sockets().iter().filter_map(|socket| match socket {
        Socket::Tcp(host, port) if host.contains(':') => Some(Target::Tcp(format!("[{host}]:{port}"))),
        Socket::Tcp(host, port) => Some(Target::Tcp(format!("{host}:{port}"))),
        Socket::Unix(path) => Some(Target::Unix(path.clone())),
        _ => None,
    });
    // The others have no listener that the system tells of; --server-pid names the process.
    let fabrics = address.fabrics().iter().filter_map(|fabric| match fabric {
        Fabric::Iwarp(text) => Some(Target::Tcp(text.strip_prefix("iwarp:")?.to_owned())),
        Fabric::Udp(text) => Some(Target::Udp(text.strip_prefix("udp:")?.to_owned())),
        _ => None,
    });
    sockets.chain(fabrics).find_map(|target| find(&target))
}

fn peer_of(path: &std::path::Path) -> Option<i32> {
    let stream = std::os::unix::net::UnixStream::connect(path).ok()?;
    Some(rustix::net::sockopt::socket_peercred(&stream).ok()?.pid.as_raw_nonzero().get())
}

/// An address that can be bound is one of this host's.
fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn listening(place: &str, stream: bool) -> Vec<u64> {
    let Ok(addresses) = place.to_socket_addrs() else { return Vec::new() };
    let mut inodes = Vec::new();
    for address in addresses.filter(|address| is_here(address.ip())) {
        let serves = |local: SocketAddr| {
            local.port() == address.port() && (local.ip() == address.ip() || local.ip().is_unspecified())
        };
        if stream {
            let entries = tcp().into_iter().flatten().chain(tcp6().into_iter().flatten());
            let heard = entries.filter(|entry| entry.state == TcpState::Listen && serves(entry.local_address));
            inodes.extend(heard.map(|entry| entry.inode));
        } else {
            let entries = udp().into_iter().flatten().chain(udp6().into_iter().flatten());
            inodes.extend(entries.filter(|entry| serves(entry.local_address)).map(|entry| entry.inode));
        }
    }
    inodes
}

fn owner(inodes: &[u64]) -> Option<i32> {
    if inodes.is_empty() {
        return None;
    }
    let mut owners = Vec::new();
    for process in all_processes().ok()?.flatten() {
        let Ok(descriptors) = process.fd() else { continue };
        let theirs = descriptors.flatten().any(|descriptor| match descriptor.target {
            FDTarget::Socket(inode) => inodes.contains(&inode),
            _ => false,
        });
        if theirs {
            owners.push(process.pid());
        }
    }
    // Where the system's first process opened the socket for a server, the server has it too.
    owners.into_iter().max_by_key(|&pid| (pid != 1, std::cmp::Reverse(pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_found_by_each_kind_of_socket() {
        let own = std::process::id() as i32;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(find(&Target::Tcp(listener.local_addr().unwrap().to_string())), Some(own));
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(find(&Target::Udp(socket.local_addr().unwrap().to_string())), Some(own));
        let datagrams = format!("client:udp:{}", socket.local_addr().unwrap());
        assert_eq!(find(&datagrams.parse().unwrap()), Some(own));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(find(&Target::Unix(path)), Some(own));
        let port = listener.local_addr().unwrap().port();
        assert_eq!(find(&Target::Tcp(format!("192.0.2.1:{port}"))), None, "another host's port is not ours");
    }
}
