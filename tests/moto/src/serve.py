"""Serves moto with changes: faster, and with load balancers that behave more like those of AWS."""

import functools
import sys

import moto.backends
import moto.core.responses
import moto.server
from moto.acm.models import CertBundle
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.responses.elastic_network_interfaces import ElasticNetworkInterfaces
from moto.elb.models import FakeHealthCheck, LoadBalancer
from moto.elbv2.models import ELBv2Backend, FakeTargetGroup

# Cached, because moto computes them again for each call: its list of modules, and the methods of classes.
modules = tuple(moto.backends.list_of_moto_modules())
moto.backends.list_of_moto_modules = lambda: modules
moto.core.responses.method_names_from_class = functools.cache(moto.core.responses.method_names_from_class)
# Calls are not logged.
moto.server.MotoRequestHandler.log_request = lambda *_, **__: None

describe_target_groups = ELBv2Backend.describe_target_groups
modify_listener = ELBv2Backend.modify_listener
describe_certificate = CertBundle.describe
deregister = FakeTargetGroup.deregister
group_set = NetworkInterface.group_set.fget
interface_filter = NetworkInterface.get_filter_value
assign_addresses = ElasticNetworkInterfaces.assign_private_ip_addresses


def described(self, balancer, *more):
    """A target group is used by a load balancer while a listener forwards to it; a load balancer may use none."""
    used = {}
    for one in self.load_balancers.values():
        for listener in one.listeners.values():
            for rule in listener.rules.values():
                for action in rule.actions:
                    for arn in self._get_target_group_arns_from(action_data=action.data):
                        used.setdefault(arn, set()).add(one.arn)
    for arn, group in self.target_groups.items():
        group.load_balancer_arns = sorted(used.get(arn, ()))
    if balancer in self.load_balancers and not any(balancer in arns for arns in used.values()):
        return []
    return describe_target_groups(self, balancer, *more)


def modified(self, arn, port=None, protocol=None, policy=None, certificates=None, actions=None):
    """A listener can have any protocol of Network Load Balancers; a TLS listener keeps its additional certificates."""
    current = next((load.listeners[arn] for load in self.load_balancers.values() if arn in load.listeners), None)
    kept = list(current.certificates or [])[1:] if current else []
    network = protocol in ("UDP", "TCP_UDP", "TLS")
    listener = modify_listener(self, arn, port, None if network else protocol, policy, certificates, actions)
    if network:
        listener.protocol = protocol
    if certificates and listener.protocol == "TLS":
        default = [one["CertificateArn"] for one in certificates]
        listener.certificates = default + [one for one in kept if one not in default]
        listener.certificate = listener.certificates[0]
    return listener


def described_certificate(self):
    """A listing contains the names of certificates too; moto's responses leave out fields that they do not have."""
    described = describe_certificate(self)
    certificate = described["Certificate"]
    certificate["SubjectAlternativeNameSummaries"] = certificate.get("SubjectAlternativeNames", [])
    certificate["HasAdditionalSubjectAlternativeNames"] = False
    return described


def deregistered(self, targets):
    """Deregistering a target that is not registered succeeds."""
    deregister(self, [target for target in targets if target["Id"] in self.targets])


def own_groups(self):
    """Additional interfaces of an instance have only their own security groups."""
    return self._group_set if self.device_index else group_set(self)


def filtered(self, name, *more):
    """An interface is found by each of its addresses."""
    if name == "addresses.private-ip-address":
        return [one["PrivateIpAddress"] for one in self.private_ip_addresses]
    if name == "ipv6-addresses.ipv6-address":
        return list(self.ipv6_addresses)
    return interface_filter(self, name, *more)


def assigned(self):
    """An interface can get prefixes of addresses."""
    interface = self.ec2_backend.get_network_interface(self._get_param("NetworkInterfaceId"))
    interface.ipv4_prefixes += [{"Ipv4Prefix": one} for one in self._get_param("Ipv4Prefixes", [])]
    return assign_addresses(self)


def created_interface(self, *arguments, **more):
    """A new interface has no prefixes."""
    create_interface(self, *arguments, **more)
    self.ipv4_prefixes = []


def created_classic(self, *arguments, **more):
    """A new Classic Load Balancer has a health check."""
    create_classic(self, *arguments, **more)
    self.health_check = self.health_check or FakeHealthCheck("5", "10", "2", "30", "HTTP:80/index.html")


create_classic = LoadBalancer.__init__
LoadBalancer.__init__ = created_classic
create_interface = NetworkInterface.__init__
NetworkInterface.__init__ = created_interface
NetworkInterface.group_set = property(own_groups)
NetworkInterface.get_filter_value = filtered
ElasticNetworkInterfaces.assign_private_ip_addresses = assigned
ELBv2Backend.describe_target_groups = described
ELBv2Backend.modify_listener = modified
CertBundle.describe = described_certificate
FakeTargetGroup.deregister = deregistered

sys.exit(moto.server.main())
