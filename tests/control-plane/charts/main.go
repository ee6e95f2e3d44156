// Command charts checks and renders charts with Helm's own packages, without the
// parts of Helm that talk to clusters and registries.
//
//	charts lint <chart> [<values file>...]
//	charts template <chart> <release> <namespace> [<values file>...]
package main

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

const kubernetes = "v1.37.0"

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string, output io.Writer) error {
	switch {
	case len(arguments) >= 2 && arguments[0] == "lint":
		return check(arguments[1], arguments[2:], output)
	case len(arguments) >= 4 && arguments[0] == "template":
		return render(arguments[1], arguments[2], arguments[3], arguments[4:], output)
	}
	return fmt.Errorf("charts lint <chart> [<values>...] | charts template <chart> <release> <namespace> [<values>...]")
}

// check prints all remarks, and fails with one that is more than a hint.
func check(chart string, files []string, output io.Writer) error {
	values, err := read(files)
	if err != nil {
		return err
	}
	version, err := common.ParseKubeVersion(kubernetes)
	if err != nil {
		return err
	}
	result := lint.RunAll(chart, values, "default", lint.WithKubeVersion(version))
	for _, message := range result.Messages {
		fmt.Fprintln(output, message)
	}
	if result.HighestSeverity > support.InfoSev {
		return fmt.Errorf("%s has faults:\n%v", chart, result.Messages)
	}
	return nil
}

// render prints the manifests, as one stream of YAML.
func render(chart, release, namespace string, files []string, output io.Writer) error {
	values, err := read(files)
	if err != nil {
		return err
	}
	loaded, err := loader.Load(chart)
	if err != nil {
		return err
	}
	version, err := common.ParseKubeVersion(kubernetes)
	if err != nil {
		return err
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	options := common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(loaded, values, options, capabilities)
	if err != nil {
		return err
	}
	rendered, err := engine.Render(loaded, all)
	if err != nil {
		return err
	}
	var names []string
	for name, text := range rendered {
		if path.Ext(name) == ".yaml" && strings.TrimSpace(text) != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(output, "---\n# Source: %s\n%s\n", name, strings.TrimSpace(rendered[name]))
	}
	return nil
}

func read(files []string) (map[string]any, error) {
	values := map[string]any{}
	for _, file := range files {
		text, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		more, err := loader.LoadValues(text)
		text.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		values = loader.MergeMaps(values, more)
	}
	return values, nil
}
