//! A network interface, as the programs have to know it.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;

use rdmakv_bpf::layout::Network;

/// An interface.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u32,
    pub(super) is_loopback: bool,
    /// Whether its packets have headers of Ethernet.
    pub(super) is_ethernet: bool,
    pub(super) is_veth: bool,
    /// Its addresses, each with the bits of its network.
    pub(super) networks: Vec<Network>,
}

/// Returns the number of the interface that has this name now, if there is one.
pub(super) fn index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    #[expect(unsafe_code, reason = "if_nametoindex")]
    // SAFETY: `if_nametoindex` reads a string that ends with a zero, which a `CString` does.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// Returns the name that the interface of this number has now, if it is there.
///
/// # Errors
///
/// The system does not tell.
pub(super) fn name(index: u32) -> io::Result<Option<String>> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    #[expect(unsafe_code, reason = "if_indextoname")]
    // SAFETY: `if_indextoname` writes at most `IF_NAMESIZE` bytes, as many as the array has.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        let error = io::Error::last_os_error();
        return if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) { Ok(None) } else { Err(error) };
    }
    Ok(CStr::from_bytes_until_nul(&name).ok().map(|name| name.to_string_lossy().into_owned()))
}

impl Interface {
    /// Returns the interface of this name.
    ///
    /// # Errors
    ///
    /// There is none, or the system does not tell.
    pub(super) fn find(name: &str) -> io::Result<Self> {
        let index = index(name).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        // Any socket answers questions about interfaces.
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).or_else(|_| UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)));
        let socket = socket.or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
        let hardware = ask(&socket, name, libc::SIOCGIFHWADDR)?;
        let mtu = ask(&socket, name, libc::SIOCGIFMTU)?;
        let flags = ask(&socket, name, libc::SIOCGIFFLAGS)?;
        #[expect(unsafe_code, reason = "fields of a union")]
        // SAFETY: a request that succeeds has set the field of the union that it is for. Each is plain numbers.
        let (address, mtu, flags) =
            unsafe { (hardware.ifr_ifru.ifru_hwaddr, mtu.ifr_ifru.ifru_mtu, flags.ifr_ifru.ifru_flags) };
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            *to = from as u8;
        }
        Ok(Self {
            index,
            mac,
            mtu: mtu.unsigned_abs(),
            is_loopback: i32::from(flags) & libc::IFF_LOOPBACK != 0,
            is_ethernet: address.sa_family == libc::ARPHRD_ETHER,
            is_veth: driver(&socket, name).is_ok_and(|driver| driver.starts_with(b"veth\0")),
            networks: networks(name)?,
        })
    }
}

/// Returns an empty request for this interface.
fn request(name: &str) -> io::Result<libc::ifreq> {
    #[expect(unsafe_code, reason = "a structure of plain numbers")]
    // SAFETY: `ifreq` is a name and a union of plain numbers and pointers, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

fn ask(socket: &UdpSocket, name: &str, what: libc::c_ulong) -> io::Result<libc::ifreq> {
    let mut request = request(name)?;
    #[expect(unsafe_code, reason = "ioctl")]
    // SAFETY: these questions read and write the `ifreq` that the pointer leads to, and keep nothing.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), what as libc::Ioctl, &raw mut request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(request) }
}

/// Returns the name of the interface's driver, with zeros behind it.
fn driver(socket: &UdpSocket, name: &str) -> io::Result<[u8; 32]> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    const ETHTOOL_GDRVINFO: u32 = 3;
    // The structure is of 196 bytes: the command, then names of 32 bytes, of which the first is the driver's.
    let mut info = [0_u32; 64];
    info[0] = ETHTOOL_GDRVINFO;
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = info.as_mut_ptr().cast();
    #[expect(unsafe_code, reason = "ioctl")]
    // SAFETY: this question writes 196 bytes at most to where `ifru_data` points, which is an array of 256, and keeps nothing.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as libc::Ioctl, &raw mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut driver = [0; 32];
    for (to, from) in driver.chunks_exact_mut(4).zip(&info[1..]) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    Ok(driver)
}

/// Returns the addresses of the interface.
#[expect(unsafe_code, reason = "getifaddrs")]
fn networks(name: &str) -> io::Result<Vec<Network>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `getifaddrs` sets the pointer to a list that is this function's until `freeifaddrs`.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut networks = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: the list's entries are valid until it is freed, below. Their names are strings that end with a zero.
        let (entry, label) = unsafe { (&*next, CStr::from_ptr((*next).ifa_name)) };
        next = entry.ifa_next;
        // An address may carry a label, which is the name and a colon before it.
        let own = label.to_bytes().split(|&byte| byte == b':').next() == Some(name.as_bytes());
        // SAFETY: `getifaddrs` returns addresses and masks that are null or valid, each with a family.
        let (address, mask) = unsafe { (ip(entry.ifa_addr), ip(entry.ifa_netmask)) };
        if let (true, Some(address), Some(mask)) = (own, address, mask) {
            let bits = match mask {
                IpAddr::V4(mask) => mask.to_bits().leading_ones(),
                IpAddr::V6(mask) => mask.to_bits().leading_ones(),
            };
            networks.push(Network { address, bits: bits as u8 });
        }
    }
    // SAFETY: the list is that of `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(networks)
}

/// Returns the address, if it is of a family that has datagrams.
///
/// # Safety
///
/// The pointer is null, or leads to an address as long as its family's.
#[expect(unsafe_code, reason = "an address of C")]
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller promises that a pointer that is not null leads to an address of its family, aligned as `getifaddrs` does.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let address = &*address.cast::<libc::sockaddr_in>();
                Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => Some(Ipv6Addr::from((*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr).into()),
            _ => None,
        }
    }
}

/// Returns whether the whole internet may reach an address.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64;
            !(v4.is_private() || v4.is_link_local() || v4.is_loopback() || shared)
        }
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            !(v6.is_loopback() || first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfe80)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_are_recognised() {
        for (address, public) in [
            ("10.1.2.3", false),
            ("192.168.0.1", false),
            ("100.64.0.1", false),
            ("100.128.0.1", true),
            ("8.8.8.8", true),
            ("169.254.1.1", false),
            ("fd00::1", false),
            ("fe80::1", false),
            ("2001:4860::1", true),
        ] {
            assert_eq!(is_public(address.parse().unwrap()), public, "{address}");
        }
    }

    #[test]
    fn loopback_is_found() {
        let lo = Interface::find("lo").unwrap();
        assert!(lo.is_loopback && !lo.is_veth && lo.mtu >= 1280);
        assert_eq!((index("lo"), name(lo.index).unwrap().as_deref()), (Some(lo.index), Some("lo")));
        assert_eq!(name(u32::MAX).unwrap(), None);
        assert!(!lo.is_ethernet);
        assert!(Interface::find("no-such-one").is_err());
    }
}
