//! Network devices: the router's bridge, and the cables (veth pairs) from it to nodes and to this machine.

use std::fmt::Display;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::address::Addresses;
use crate::{bed, command};

/// Maximum time until a process has created its network namespace.
const NAMESPACE_DEADLINE: Duration = Duration::from_secs(30);

/// The bridge between nodes.
const BRIDGE: &str = "br0";

/// The bridge's hardware address. A bridge without a fixed address has the lowest address of its ports. When the node
/// at that port fails, the address no longer exists: other nodes cannot reach the router until their ARP entries
/// expire.
const BRIDGE_HARDWARE_ADDRESS: &str = "02:00:00:00:00:01";

/// Kernel settings of the router's network namespace. Those that the kernel does not have are left out. They must be
/// written before the bridge has an address: from then on, changed defaults do not apply to it.
const ROUTER_SETTINGS: [(&str, &str); 7] = [
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    // With redirects, this machine would send all packets to a load balancer to one node for five minutes, even if that
    // node fails.
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    // Connections to a killed node end soon.
    ("ipv4/tcp_orphan_retries", "1"),
    // Connections to a load balancer are spread by address and port.
    ("ipv4/fib_multipath_hash_policy", "1"),
    // Frames between nodes are not filtered as if they were routed.
    ("bridge/bridge-nf-call-iptables", "0"),
];

/// Kernel settings of a node's network namespace, written before its device has an address.
const NODE_SETTINGS: [(&str, &str); 5] = [
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
];

/// Returns the file of a process' network namespace.
pub fn namespace(process: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{process}/ns/net"))
}

/// Makes this process' network namespace the router of a cluster.
///
/// # Errors
/// When the kernel refuses.
pub fn set_up_router(addresses: Addresses) -> Result<()> {
    set(&ROUTER_SETTINGS)?;
    ip(&format!(
        "link set lo up
link add {BRIDGE} address {BRIDGE_HARDWARE_ADDRESS} type bridge
address add {}/24 dev {BRIDGE}
link set {BRIDGE} up
",
        addresses.gateway()
    ))
}

/// Returns a non-blocking socket that listens in another network namespace. No other program and no firewall of this
/// machine can interfere.
///
/// # Errors
/// When the kernel refuses, or the address is in use there.
pub fn listen_in(namespace: &Path, address: SocketAddr) -> Result<TcpListener> {
    let file = File::open(namespace).with_context(|| format!("open {}", namespace.display()))?;
    // A separate thread enters the namespace, and ends after that: no other task may run in the namespace.
    let listening = thread::spawn(move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .context("enter the network namespace")?;
        let listener = TcpListener::bind(address).with_context(|| format!("listen on {address}"))?;
        listener.set_nonblocking(true).context("make a socket non-blocking")?;
        Ok(listener)
    });
    listening.join().map_err(|_| anyhow!("the thread that listens on {address} has panicked"))?
}

/// Connects this machine with a cluster's router, and routes the range of its load balancers there.
///
/// # Errors
/// When the kernel refuses, for instance because the addresses are in use.
pub fn connect_machine(addresses: Addresses, router: &Path, process: u32) -> Result<()> {
    let device = bed::device(addresses.index);
    ip(&format!("link add {device} type veth peer name machine netns {process}\n"))?;
    ip_in(router, &format!("link set machine master {BRIDGE} up\n"))?;
    ip(&format!(
        "address add {}/24 dev {device}
link set {device} up
route add {} via {}
",
        addresses.machine(),
        addresses.balancers(),
        addresses.gateway()
    ))?;
    let [_, balancers] = addresses.ranges();
    for address in [addresses.gateway(), balancers.first()] {
        check_route(&route_to(address)?, &device).with_context(|| format!("send packets to {address}"))?;
    }
    Ok(())
}

/// Fails if this machine does not send packets for a load balancer to the cluster's router.
///
/// # Errors
/// In that case, or when `ip` fails.
pub fn check_route_to_balancer(addresses: Addresses, balancer: IpAddr) -> Result<()> {
    check_gateway(&route_to(balancer)?, addresses.gateway()).with_context(|| format!("send packets to {balancer}"))
}

fn route_to(address: impl Display) -> Result<Value> {
    let route = command::run("ip", &["-json", "route", "get", &address.to_string()])?;
    serde_json::from_str(&route).context("read the output of ip")
}

/// Fails if a route, in the output of `ip -json route get`, has another device: rules of a VPN can precede all routes
/// of the main table.
fn check_route(routes: &Value, device: &str) -> Result<()> {
    let other = routes[0]["dev"].as_str().filter(|other| *other != device);
    match other {
        Some(other) => bail!("rules of this machine (ip rule) send them to {other}: end the VPN that has set them"),
        None => Ok(()),
    }
}

/// Fails if a route, in the output of `ip -json route get`, has another gateway: it was redirected.
fn check_gateway(routes: &Value, gateway: Ipv4Addr) -> Result<()> {
    let used = routes[0]["gateway"].as_str().unwrap_or_default();
    ensure!(used == gateway.to_string(), "they are sent to {used:?} instead of the router {gateway}");
    Ok(())
}

/// Removes the cable to this machine, from the router's end, if it exists.
pub fn disconnect_machine() {
    let _ = command::run("ip", &["link", "delete", "machine"]);
}

/// Connects a cluster's router with a node, whose namespaces `process` has just created or is about to create.
///
/// # Errors
/// When the namespace does not appear, or the kernel refuses.
pub fn connect_node(router: &Path, name: &str, process: u32) -> Result<()> {
    wait_for_namespace(router, process)?;
    ip_in(
        router,
        &format!("link add {name} type veth peer name eth0 netns {process}\nlink set {name} master {BRIDGE} up\n"),
    )
}

/// Removes the cable between a cluster's router and a node. Without that, the kernel would forward packets for a killed
/// node, by the last rules of its kube-proxy, as long as open connections keep its network namespace: a minute or
/// longer.
///
/// # Errors
/// When there is no cable.
pub fn disconnect_node(router: &Path, name: &str) -> Result<()> {
    ip_in(router, &format!("link delete {name}\n"))
}

/// Sets up the node's end of the cable in this process' network namespace, once the cable exists.
///
/// # Errors
/// When there is no cable, or the kernel refuses.
pub fn set_up_node(address: Ipv4Addr, gateway: Ipv4Addr) -> Result<()> {
    let deadline = Instant::now() + NAMESPACE_DEADLINE;
    while !Path::new("/sys/class/net/eth0").exists() {
        if Instant::now() > deadline {
            bail!("this node got no network device in {} s", NAMESPACE_DEADLINE.as_secs());
        }
        sleep(Duration::from_millis(20));
    }
    set(&NODE_SETTINGS)?;
    ip(&format!(
        "link set lo up
address add {address}/24 dev eth0
link set eth0 up
route add default via {gateway}
"
    ))
}

/// Waits until a process has a network namespace that is neither this process' nor the router's.
fn wait_for_namespace(router: &Path, process: u32) -> Result<()> {
    let link = |path: &Path| fs::read_link(path).with_context(|| format!("read {}", path.display()));
    let others = [link(&namespace(std::process::id()))?, link(router)?];
    let deadline = Instant::now() + NAMESPACE_DEADLINE;
    while others.contains(&link(&namespace(process))?) {
        if Instant::now() > deadline {
            bail!("process {process} made no network namespace in {} s", NAMESPACE_DEADLINE.as_secs());
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Runs commands of `ip`, one per line, in a network namespace.
///
/// # Errors
/// When one of them fails.
pub fn ip_in(namespace: &Path, commands: &str) -> Result<()> {
    let net = format!("--net={}", namespace.display());
    command::run_with_input("nsenter", &[&net, "--", "ip", "-batch", "-"], commands)?;
    Ok(())
}

fn ip(commands: &str) -> Result<()> {
    command::run_with_input("ip", &["-batch", "-"], commands)?;
    Ok(())
}

/// Writes settings of this process' network namespace; those that the kernel does not have are left out.
fn set(settings: &[(&str, &str)]) -> Result<()> {
    for (name, value) in settings {
        let path = Path::new("/proc/sys/net").join(name);
        if path.exists() {
            fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn route_that_a_rule_sends_to_another_device_is_an_error() {
        let route = |device: &str| json!([{ "dst": "172.30.0.1", "dev": device, "table": "52" }]);
        assert!(check_route(&route("kcm0"), "kcm0").is_ok());
        let error = check_route(&route("tailscale0"), "kcm0").unwrap_err().to_string();
        assert!(error.contains("to tailscale0"), "{error}");
    }

    #[test]
    fn redirected_route_is_an_error() {
        let route = |gateway: &str| json!([{ "dst": "198.18.0.1", "gateway": gateway, "cache": ["redirected"] }]);
        let router = Ipv4Addr::new(172, 30, 0, 1);
        assert!(check_gateway(&route("172.30.0.1"), router).is_ok());
        let error = check_gateway(&route("172.30.0.101"), router).unwrap_err().to_string();
        assert!(error.contains("172.30.0.101"), "{error}");
    }

    #[test]
    fn socket_listens_in_the_namespace_of_the_file() {
        let own = PathBuf::from("/proc/self/ns/net");
        // Only root can enter a namespace, even its own.
        if !crate::requirements::is_root() {
            assert!(listen_in(&own, ([127, 0, 0, 1], 0).into()).is_err());
            return;
        }
        let listener = listen_in(&own, ([127, 0, 0, 1], 0).into()).unwrap();
        std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(listen_in(Path::new("/proc/self/ns/uts"), ([127, 0, 0, 1], 0).into()).is_err());
    }
}
