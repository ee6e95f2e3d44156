// hostpathplugin replaces the program of that name in upstream's specs.
//
// With -proxy-endpoint it is a proxy, as the original: specs run their CSI and DRA drivers inside the suite, and forward a
// port of this program's pod to them. Without it, it is the driver that upstream's suite contains for such specs, whose
// volumes are empty folders of a node; the original's volumes keep their data.
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

// settings returns the flags: `-name=value`, `-name value`, or `-name`, which stands for true.
func settings(arguments []string) map[string]string {
	flags := make(map[string]string)
	last := ""
	for _, argument := range arguments {
		if !strings.HasPrefix(argument, "-") {
			flags[last] = argument
			continue
		}
		name, value, found := strings.Cut(strings.TrimLeft(argument, "-"), "=")
		if !found {
			value = "true"
		}
		flags[name], last = value, name
	}
	return flags
}

// serve runs the driver.
func serve(flags map[string]string) error {
	limit, err := strconv.ParseInt("0"+flags["attach-limit"], 10, 64)
	if err != nil {
		return fmt.Errorf("-attach-limit=%s: %w", flags["attach-limit"], err)
	}
	implementation := service.New(service.Config{
		DriverName:            flags["drivername"],
		DisableAttach:         flags["enable-attach"] != "true",
		AttachLimit:           limit,
		NodeExpansionRequired: flags["node-expand-required"] == "true",
		EnableTopology:        flags["enable-topology"] == "true",
		IO:                    service.OSDirIO{},
	})
	listener, err := listen(flags["endpoint"])
	if err != nil {
		return err
	}
	// Specs read the driver's calls in its log.
	verbosity := new(klog.Level)
	if err := verbosity.Set("5"); err != nil {
		return err
	}
	servers := &driver.CSIDriverServers{Controller: implementation, Identity: implementation, Node: implementation}
	if err := driver.NewCSIDriver(servers).Start(listener, nil); err != nil {
		return err
	}
	select {}
}

func run() error {
	flags := settings(os.Args[1:])
	if flags["endpoint"] == "" {
		return fmt.Errorf("-endpoint=SOCKET is needed")
	}
	if port := flags["proxy-endpoint"]; port != "" {
		return proxy(flags["endpoint"], port)
	}
	return serve(flags)
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
