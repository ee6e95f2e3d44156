// Command cloud is the stock cloud-controller-manager with the mock cloud as
// its provider, over HTTP. It is built only for tests of takeovers. Its cloud
// config is the mock's URL.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
)

// mock is the cloud, by its URL.
type mock struct {
	url    string
	client http.Client
}

// machine is an instance as the mock describes it.
type machine struct {
	Running      bool              `json:"running"`
	ProviderID   string            `json:"provider_id"`
	InstanceType string            `json:"instance_type"`
	Zone         string            `json:"zone"`
	Region       string            `json:"region"`
	Addresses    []address         `json:"addresses"`
	Labels       map[string]string `json:"labels"`
}

type address struct {
	Kind    string `json:"kind"`
	Address string `json:"address"`
}

type id struct {
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

type balancer struct {
	ID        id       `json:"id"`
	Exists    bool     `json:"exists"`
	Addresses []string `json:"addresses"`
}

// route is a route to an instance, by its provider ID. The mock returns the
// target as an object, or as a word if the instance no longer exists.
type route struct {
	Destination string `json:"destination"`
	Instance    string `json:"instance,omitempty"`
}

type routeView struct {
	Destination string          `json:"destination"`
	Target      json.RawMessage `json:"target"`
}

type state struct {
	Instances map[string]machine `json:"instances"`
	Balancers []balancer         `json:"balancers"`
	Routes    []routeView        `json:"routes"`
}

// port and spec are the desired state of a load balancer.
type port struct {
	Name     string      `json:"name"`
	Protocol v1.Protocol `json:"protocol"`
	Port     int32       `json:"port"`
	NodePort int32       `json:"node_port"`
}

type spec struct {
	Ports     []port   `json:"ports"`
	Instances []string `json:"instances"`
}

func (m *mock) request(ctx context.Context, method, path string, body, answer any) error {
	var text bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&text).Encode(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, m.url+path, &text)
	if err != nil {
		return err
	}
	response, err := m.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		complaint, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, complaint)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

func (m *mock) state(ctx context.Context) (state, error) {
	var all state
	err := m.request(ctx, http.MethodGet, "/state", nil, &all)
	return all, err
}

func (m *mock) machine(ctx context.Context, node *v1.Node) (*machine, error) {
	all, err := m.state(ctx)
	if err != nil {
		return nil, err
	}
	if found, ok := all.Instances[node.Name]; ok {
		return &found, nil
	}
	return nil, nil
}

func (m *mock) InstanceExists(ctx context.Context, node *v1.Node) (bool, error) {
	found, err := m.machine(ctx, node)
	return found != nil, err
}

func (m *mock) InstanceShutdown(ctx context.Context, node *v1.Node) (bool, error) {
	found, err := m.machine(ctx, node)
	return found != nil && !found.Running, err
}

func (m *mock) InstanceMetadata(ctx context.Context, node *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	found, err := m.machine(ctx, node)
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, cloudprovider.InstanceNotFound
	}
	var addresses []v1.NodeAddress
	for _, own := range found.Addresses {
		addresses = append(addresses, v1.NodeAddress{Type: v1.NodeAddressType(own.Kind), Address: own.Address})
	}
	return &cloudprovider.InstanceMetadata{
		ProviderID:       found.ProviderID,
		InstanceType:     found.InstanceType,
		NodeAddresses:    addresses,
		Zone:             found.Zone,
		Region:           found.Region,
		AdditionalLabels: found.Labels,
	}, nil
}

func path(cluster string, service *v1.Service) string {
	return fmt.Sprintf("/balancers/%s/%s/%s/%s", cluster, service.Namespace, service.Name, service.UID)
}

func (m *mock) GetLoadBalancer(ctx context.Context, cluster string, service *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	all, err := m.state(ctx)
	if err != nil {
		return nil, false, err
	}
	wanted := id{cluster, service.Namespace, service.Name, string(service.UID)}
	for _, found := range all.Balancers {
		if found.ID == wanted {
			return status(found.Addresses), true, nil
		}
	}
	return nil, false, nil
}

func (m *mock) GetLoadBalancerName(_ context.Context, _ string, service *v1.Service) string {
	return cloudprovider.DefaultLoadBalancerName(service)
}

func (m *mock) EnsureLoadBalancer(ctx context.Context, cluster string, service *v1.Service, nodes []*v1.Node) (*v1.LoadBalancerStatus, error) {
	var desired spec
	for _, own := range service.Spec.Ports {
		desired.Ports = append(desired.Ports, port{own.Name, own.Protocol, own.Port, own.NodePort})
	}
	for _, node := range nodes {
		if node.Spec.ProviderID != "" {
			desired.Instances = append(desired.Instances, node.Spec.ProviderID)
		}
	}
	var made balancer
	if err := m.request(ctx, http.MethodPut, path(cluster, service), desired, &made); err != nil {
		return nil, err
	}
	if len(made.Addresses) == 0 {
		return nil, errors.New("the load balancer has no address yet")
	}
	return status(made.Addresses), nil
}

func (m *mock) UpdateLoadBalancer(ctx context.Context, cluster string, service *v1.Service, nodes []*v1.Node) error {
	_, err := m.EnsureLoadBalancer(ctx, cluster, service, nodes)
	return err
}

func (m *mock) EnsureLoadBalancerDeleted(ctx context.Context, cluster string, service *v1.Service) error {
	return m.request(ctx, http.MethodDelete, path(cluster, service), nil, nil)
}

func (m *mock) ListRoutes(ctx context.Context, _ string) ([]*cloudprovider.Route, error) {
	all, err := m.state(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]types.NodeName{}
	for name, found := range all.Instances {
		names[found.ProviderID] = types.NodeName(name)
	}
	var routes []*cloudprovider.Route
	for _, found := range all.Routes {
		var target struct {
			Instance string `json:"instance"`
		}
		own := cloudprovider.Route{Name: found.Destination, DestinationCIDR: found.Destination}
		if json.Unmarshal(found.Target, &target) == nil {
			own.TargetNode = names[target.Instance]
		}
		own.Blackhole = own.TargetNode == ""
		routes = append(routes, &own)
	}
	return routes, nil
}

func (m *mock) CreateRoute(ctx context.Context, _ string, _ string, wanted *cloudprovider.Route) error {
	all, err := m.state(ctx)
	if err != nil {
		return err
	}
	instance := all.Instances[string(wanted.TargetNode)].ProviderID
	return m.request(ctx, http.MethodPut, "/routes", route{wanted.DestinationCIDR, instance}, nil)
}

func (m *mock) DeleteRoute(ctx context.Context, _ string, listed *cloudprovider.Route) error {
	return m.request(ctx, http.MethodDelete, "/routes", route{Destination: listed.DestinationCIDR}, nil)
}

func status(addresses []string) *v1.LoadBalancerStatus {
	var all v1.LoadBalancerStatus
	for _, ip := range addresses {
		all.Ingress = append(all.Ingress, v1.LoadBalancerIngress{IP: ip})
	}
	return &all
}

func (m *mock) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}
func (m *mock) LoadBalancer() (cloudprovider.LoadBalancer, bool)                  { return m, true }
func (m *mock) Instances() (cloudprovider.Instances, bool)                        { return nil, false }
func (m *mock) InstancesV2() (cloudprovider.InstancesV2, bool)                    { return m, true }
func (m *mock) Zones() (cloudprovider.Zones, bool)                                { return nil, false }
func (m *mock) Clusters() (cloudprovider.Clusters, bool)                          { return nil, false }
func (m *mock) Routes() (cloudprovider.Routes, bool)                              { return m, true }
func (m *mock) ProviderName() string                                              { return "mock" }
func (m *mock) HasClusterID() bool                                                { return true }

func main() {
	cloudprovider.RegisterCloudProvider("mock", func(file io.Reader) (cloudprovider.Interface, error) {
		if file == nil {
			return nil, errors.New("--cloud-config is missing: name a file with the URL of the mock cloud")
		}
		url, err := io.ReadAll(file)
		client := http.Client{Timeout: 10 * time.Second}
		return &mock{url: strings.TrimSpace(string(url)), client: client}, err
	})
	flags, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cloud := func(config *config.CompletedConfig) cloudprovider.Interface {
		given := config.ComponentConfig.KubeCloudShared.CloudProvider
		made, err := cloudprovider.InitCloudProvider(given.Name, given.CloudConfigFile)
		if err != nil || made == nil {
			fmt.Fprintln(os.Stderr, "no cloud:", err)
			os.Exit(1)
		}
		return made
	}
	command := app.NewCloudControllerManagerCommand(flags, cloud, app.DefaultInitFuncConstructors,
		names.CCMControllerAliases(), cliflag.NamedFlagSets{}, wait.NeverStop)
	os.Exit(cli.Run(command))
}
