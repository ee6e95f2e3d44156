// Command rules checks and tests alerts with Prometheus' own packages, without the
// parts of Prometheus that scrape and store.
//
//	rules check <rules file>
//	rules test <rules file> <cases file>
//
// A rules file is a PrometheusRule of the Prometheus operator. A cases file is a list;
// each case has series in promtool's notation, the alerts that fire after a time, by
// their labels, and texts of their annotations.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"go.yaml.in/yaml/v3"
)

const usage = "rules check <rules file> | rules test <rules file> <cases file>"

// sampled is the interval at which series have values and rules are evaluated.
const sampled = time.Minute

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string, output io.Writer) error {
	switch {
	case len(arguments) == 2 && arguments[0] == "check":
		alerts, err := read(arguments[1])
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(output, "%d alerts are well-formed\n", len(alerts))
		return err
	case len(arguments) == 3 && arguments[0] == "test":
		return test(arguments[1], arguments[2], output)
	}
	return errors.New(usage)
}

// read returns the rules of a PrometheusRule; the error contains the faults of all rules.
func read(file string) ([]rulefmt.Rule, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var object struct {
		Kind string    `yaml:"kind"`
		Spec yaml.Node `yaml:"spec"`
	}
	if err := yaml.Unmarshal(content, &object); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if object.Kind != "PrometheusRule" {
		return nil, fmt.Errorf("%s has the kind %q instead of PrometheusRule", file, object.Kind)
	}
	spec, err := yaml.Marshal(&object.Spec)
	if err != nil {
		return nil, err
	}
	groups, faults := rulefmt.Parse(spec, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(faults) > 0 {
		return nil, fmt.Errorf("%s: %w", file, errors.Join(faults...))
	}
	var alerts []rulefmt.Rule
	for _, group := range groups.Groups {
		alerts = append(alerts, group.Rules...)
	}
	return alerts, nil
}

// scene is a case: series of samples, and the expected alerts and texts after a time.
type scene struct {
	Name   string              `yaml:"name"`
	Series []string            `yaml:"series"`
	After  model.Duration      `yaml:"after"`
	Fires  map[string][]string `yaml:"fires"`
	Quiet  []string            `yaml:"quiet"`
	Texts  []string            `yaml:"texts"`
}

// test fails unless each scene has the expected alerts, and each alert fires in one scene and is quiet in another.
func test(file, cases string, output io.Writer) error {
	alerts, err := read(file)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(cases)
	if err != nil {
		return err
	}
	var scenes []scene
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(&scenes); err != nil {
		return fmt.Errorf("%s: %w", cases, err)
	}
	var faults []error
	fired, quiet := map[string]bool{}, map[string]bool{}
	for _, scene := range scenes {
		if err := scene.play(alerts); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", scene.Name, err))
		}
		for name := range scene.Fires {
			fired[name] = true
		}
		for _, name := range scene.Quiet {
			quiet[name] = true
		}
	}
	for _, alert := range alerts {
		if !fired[alert.Alert] || !quiet[alert.Alert] {
			faults = append(faults, fmt.Errorf("%s must fire in one case and be quiet in another", alert.Alert))
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	_, err = fmt.Fprintf(output, "%d alerts behave as expected in %d cases\n", len(alerts), len(scenes))
	return err
}

// play evaluates all alerts each minute, as Prometheus does, and compares those that fire at the end.
func (s scene) play(alerts []rulefmt.Rule) error {
	load := fmt.Sprintf("load %s\n  %s\n", model.Duration(sampled), strings.Join(s.Series, "\n  "))
	loader, err := promqltest.NewLazyLoader(load, promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true})
	if err != nil {
		return err
	}
	defer loader.Close()
	known := map[string]*rules.AlertingRule{}
	for _, alert := range alerts {
		expression, err := parser.NewParser(parser.Options{}).ParseExpr(alert.Expr)
		if err != nil {
			return fmt.Errorf("%s: %w", alert.Alert, err)
		}
		known[alert.Alert] = rules.NewAlertingRule(
			alert.Alert, expression, time.Duration(alert.For), time.Duration(alert.KeepFiringFor),
			labels.FromMap(alert.Labels), labels.FromMap(alert.Annotations), labels.EmptyLabels(), "", true,
			slog.New(slog.DiscardHandler))
	}
	start := time.Unix(0, 0).UTC()
	for now := start; !now.After(start.Add(time.Duration(s.After))); now = now.Add(sampled) {
		loader.WithSamplesTill(now, func(failure error) {
			err = errors.Join(err, failure, evaluate(loader, known, now))
		})
	}
	if err != nil {
		return err
	}
	return s.compare(known)
}

func evaluate(loader *promqltest.LazyLoader, known map[string]*rules.AlertingRule, now time.Time) error {
	query := rules.EngineQueryFunc(loader.QueryEngine(), loader.Queryable())
	for name, rule := range known {
		if _, err := rule.Eval(context.Background(), 0, now, query, &url.URL{}, 0); err != nil {
			return fmt.Errorf("%s after %s: %w", name, now.Sub(time.Unix(0, 0)), err)
		}
	}
	return nil
}

// compare returns an error for each alert that fires and should not, or the reverse, and for each missing text.
func (s scene) compare(known map[string]*rules.AlertingRule) error {
	var faults []error
	for name := range s.Fires {
		if known[name] == nil {
			faults = append(faults, fmt.Errorf("there is no alert %s", name))
		}
	}
	var texts strings.Builder
	for name, rule := range known {
		var firing []string
		for _, alert := range rule.ActiveAlerts() {
			if alert.State != rules.StateFiring {
				continue
			}
			without := labels.NewBuilder(alert.Labels).Del(labels.AlertName, "severity").Labels()
			firing = append(firing, without.String())
			alert.Annotations.Range(func(text labels.Label) { fmt.Fprintln(&texts, text.Value) })
		}
		wanted := slices.Sorted(slices.Values(s.Fires[name]))
		slices.Sort(firing)
		if !slices.Equal(firing, wanted) && (len(wanted) > 0 || slices.Contains(s.Quiet, name)) {
			faults = append(faults, fmt.Errorf("%s fires for %v instead of %v", name, firing, wanted))
		}
	}
	for _, text := range s.Texts {
		if !strings.Contains(texts.String(), text) {
			faults = append(faults, fmt.Errorf("no alert has the text %q; the texts are\n%s", text, texts.String()))
		}
	}
	if strings.Contains(texts.String(), "<error expanding template") || strings.Contains(texts.String(), "<no value>") {
		faults = append(faults, fmt.Errorf("a template of a text failed:\n%s", texts.String()))
	}
	return errors.Join(faults...)
}
