//! The devices of a driver that taints keep pods away from.

use std::collections::{HashMap, HashSet};

use kinds::resource_slice::Device;
use kinds::{DeviceTaintRule, Taint};

/// Devices that rules taint, by the devices' names. Thus no rule is compared with each device: a cluster may have
/// thousands of rules that name one device each.
#[derive(Default)]
struct DeviceSelection<'a> {
    all: bool,
    named: HashSet<&'a str>,
}

impl DeviceSelection<'_> {
    fn contains(&self, device: &str) -> bool {
        self.all || self.named.contains(device)
    }
}

/// The devices of a driver that rules keep pods away from. Same selection as [`DeviceTaintRule::selects`].
pub struct TaintedDevices<'a> {
    in_any_pool: DeviceSelection<'a>,
    by_pool: HashMap<&'a str, DeviceSelection<'a>>,
}

impl<'a> TaintedDevices<'a> {
    /// Reads the rules that apply to a driver.
    pub fn new(driver: &str, rules: impl Iterator<Item = &'a DeviceTaintRule>) -> Self {
        let mut tainted = Self { in_any_pool: DeviceSelection::default(), by_pool: HashMap::new() };
        let selectors = rules.filter(|rule| keeps_pods_away(&rule.taint)).filter_map(|rule| rule.selector.as_ref());
        for selector in selectors.filter(|selector| selector.driver.as_deref().is_none_or(|name| name == driver)) {
            let selected = match &selector.pool {
                Some(pool) => tainted.by_pool.entry(pool).or_default(),
                None => &mut tainted.in_any_pool,
            };
            match &selector.device {
                Some(device) => drop(selected.named.insert(device)),
                None => selected.all = true,
            }
        }
        tainted
    }

    /// Returns true if taints keep pods away from a device: the taints of its slice or those of rules.
    pub fn contains(&self, pool: &str, device: &Device) -> bool {
        device.taints.iter().any(keeps_pods_away)
            || self.in_any_pool.contains(&device.name)
            || self.by_pool.get(pool).is_some_and(|selected| selected.contains(&device.name))
    }
}

fn keeps_pods_away(taint: &Taint) -> bool {
    matches!(&*taint.effect, "NoSchedule" | "NoExecute")
}
