// Command cel records what upstream's type checker of ValidatingAdmissionPolicies reports.
//
//	cel declarations
//	cel record <directory> <specification>
//
// The first prints the signature of each function that an expression may call, one overload a line, and the variables.
//
// The second reads the cases and the OpenAPI documents of <directory>, runs upstream's own checker over
// each case, and writes the warnings to verdicts.json. Documents of custom resources are inputs; those of
// built-in groups are cut from <specification>, the folder api/openapi-spec/v3 of the Kubernetes module.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"

	v1 "k8s.io/api/admissionregistration/v1"
	apiextensionsscheme "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
	generated "k8s.io/kubernetes/pkg/generated/openapi"
)

const usage = "cel declarations | cel record <directory> <specification>"

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string, output io.Writer) error {
	switch {
	case len(arguments) == 1 && arguments[0] == "declarations":
		return declarations(output)
	case len(arguments) == 3 && arguments[0] == "record":
		if err := cut(arguments[1], arguments[2]); err != nil {
			return err
		}
		return record(arguments[1])
	}
	return errors.New(usage)
}

// declarations prints the functions and variables of the environment in which stored expressions are compiled.
func declarations(output io.Writer) error {
	env := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).StoredExpressionsEnv()
	functions := env.Functions()
	names := make([]string, 0, len(functions))
	for name := range functions {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, overload := range functions[name].OverloadDecls() {
			arguments := overload.ArgTypes()
			receiver := ""
			if overload.IsMemberFunction() {
				receiver = format(arguments[0]) + " . "
				arguments = arguments[1:]
			}
			texts := make([]string, len(arguments))
			for i, argument := range arguments {
				texts[i] = format(argument)
			}
			fmt.Fprintf(output, "%s%s ( %s ) %s\n", receiver, name, strings.Join(texts, " , "), format(overload.ResultType()))
		}
	}
	for _, variable := range env.Variables() {
		fmt.Fprintf(output, "# %s : %s\n", variable.Name(), format(variable.Type()))
	}
	return nil
}

func format(t *cel.Type) string { return checker.FormatCELType(t) }

// kept are the keywords of a schema that types depend on.
var kept = []string{"$ref", "allOf", "type", "format", "items", "properties", "additionalProperties",
	"x-kubernetes-int-or-string", "x-kubernetes-embedded-resource", "x-kubernetes-group-version-kind"}

// cut writes the schemas of the built-in kinds to the folder schemas, with only those keywords that types depend on.
func cut(directory, specification string) error {
	found, _, err := kinds(directory)
	if err != nil {
		return err
	}
	roots := map[string][]schema.GroupVersionKind{}
	for _, gvk := range found {
		name := "apis__" + gvk.Group + "__" + gvk.Version
		if gvk.Group == "" {
			name = "api__" + gvk.Version
		}
		roots[name] = append(roots[name], gvk)
	}
	for name, gvks := range roots {
		file := filepath.Join(specification, name+"_openapi.json")
		if _, err := os.Stat(file); os.IsNotExist(err) {
			continue
		}
		var whole struct {
			Components struct {
				Schemas map[string]map[string]any `json:"schemas"`
			} `json:"components"`
		}
		if err := read(file, &whole); err != nil {
			return err
		}
		schemas := map[string]any{}
		for name, one := range whole.Components.Schemas {
			if isOneOf(one, gvks) {
				collect(whole.Components.Schemas, name, schemas)
			}
		}
		text, err := json.Marshal(map[string]any{"components": map[string]any{"schemas": schemas}})
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(directory, "schemas", name+".json"), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func isOneOf(one map[string]any, gvks []schema.GroupVersionKind) bool {
	listed, _ := one["x-kubernetes-group-version-kind"].([]any)
	for _, entry := range listed {
		entry, _ := entry.(map[string]any)
		for _, gvk := range gvks {
			if entry["group"] == gvk.Group && entry["version"] == gvk.Version && entry["kind"] == gvk.Kind {
				return true
			}
		}
	}
	return false
}

// collect adds a schema and those that it refers to.
func collect(all map[string]map[string]any, name string, schemas map[string]any) {
	if _, ok := schemas[name]; ok || all[name] == nil {
		return
	}
	schemas[name] = nil
	schemas[name] = strip(all[name], func(reference string) {
		collect(all, strings.TrimPrefix(reference, "#/components/schemas/"), schemas)
	})
}

func strip(one map[string]any, refers func(string)) map[string]any {
	result := map[string]any{}
	for _, key := range kept {
		switch value := one[key].(type) {
		case nil:
		case map[string]any:
			if key != "properties" {
				result[key] = strip(value, refers)
				continue
			}
			properties := map[string]any{}
			for name, property := range value {
				properties[name] = strip(property.(map[string]any), refers)
			}
			result[key] = properties
		case []any:
			if key != "allOf" {
				result[key] = value
				continue
			}
			var parts []any
			for _, part := range value {
				parts = append(parts, strip(part.(map[string]any), refers))
			}
			result[key] = parts
		case string:
			if key == "$ref" {
				refers(value)
			}
			result[key] = value
		default:
			result[key] = value
		}
	}
	return result
}

// testCase is a list of expressions, each for a policy of its own; all policies have the same resources and variables.
type testCase struct {
	Name      string            `json:"name,omitempty"`
	Resources []string          `json:"resources"`
	Params    string            `json:"params,omitempty"`
	Variables []v1.Variable     `json:"variables,omitempty"`
	Checks    []json.RawMessage `json:"checks"`
}

// verdict is a case's expression and the warning that upstream gives; empty if it gives none.
type verdict struct {
	Resources  []string      `json:"resources"`
	Params     string        `json:"params,omitempty"`
	Variables  []v1.Variable `json:"variables,omitempty"`
	Expression string        `json:"expression"`
	Warning    string        `json:"warning,omitempty"`
}

// documents serves the OpenAPI documents of a directory as an API server would.
type documents struct {
	discovery.DiscoveryInterface
	openapi.Client
	directory string
}

func (d *documents) OpenAPIV3() openapi.Client { return d }

func (d *documents) Paths() (map[string]openapi.GroupVersion, error) {
	files, err := filepath.Glob(filepath.Join(d.directory, "custom", "*.json"))
	if err != nil {
		return nil, err
	}
	paths := map[string]openapi.GroupVersion{}
	for _, file := range files {
		path := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".json"), "__", "/")
		paths[path] = document{file: file}
	}
	return paths, nil
}

type document struct {
	openapi.GroupVersion
	file string
}

func (d document) Schema(string) ([]byte, error) { return os.ReadFile(d.file) }

func read(path string, into any) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// kinds maps "group/version/plural" to the kind; the core group is "".
func kinds(directory string) (map[string]schema.GroupVersionKind, meta.RESTMapper, error) {
	var listed map[string]string
	if err := read(filepath.Join(directory, "kinds.json"), &listed); err != nil {
		return nil, nil, err
	}
	found := map[string]schema.GroupVersionKind{}
	mapper := meta.NewDefaultRESTMapper(nil)
	for resource, kind := range listed {
		group, version, plural, err := split(resource)
		if err != nil {
			return nil, nil, err
		}
		gvk := schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
		gvr := schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
		mapper.AddSpecific(gvk, gvr, gvr, meta.RESTScopeNamespace)
		found[resource] = gvk
	}
	return found, mapper, nil
}

func split(resource string) (group, version, plural string, err error) {
	parts := strings.Split(resource, "/")
	if len(parts) != 3 {
		return "", "", "", fmt.Errorf("%q is not group/version/plural", resource)
	}
	return parts[0], parts[1], parts[2], nil
}

func record(directory string) error {
	found, mapper, err := kinds(directory)
	if err != nil {
		return err
	}
	var cases []testCase
	files, err := filepath.Glob(filepath.Join(directory, "cases", "*.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		var more []testCase
		if err := read(file, &more); err != nil {
			return err
		}
		cases = append(cases, more...)
	}
	checker := &validating.TypeChecker{
		SchemaResolver: resolver.NewDefinitionsSchemaResolver(generated.GetOpenAPIDefinitions, scheme.Scheme, apiextensionsscheme.Scheme).
			Combine(&resolver.ClientDiscoveryResolver{Discovery: &documents{directory: directory}}),
		RestMapper: mapper,
	}
	var verdicts []verdict
	for _, one := range cases {
		more, err := check(checker, found, one)
		if err != nil {
			return err
		}
		verdicts = append(verdicts, more...)
	}
	var text strings.Builder
	text.WriteString("[\n")
	for i, one := range verdicts {
		if i > 0 {
			text.WriteString(",\n")
		}
		var line strings.Builder
		encoder := json.NewEncoder(&line)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(one); err != nil {
			return err
		}
		text.WriteString(strings.TrimSuffix(line.String(), "\n"))
	}
	text.WriteString("\n]\n")
	return os.WriteFile(filepath.Join(directory, "verdicts.json"), []byte(text.String()), 0o644)
}

// check runs upstream's checker over one policy for each expression of a case.
func check(checker *validating.TypeChecker, found map[string]schema.GroupVersionKind, one testCase) ([]verdict, error) {
	policy := &v1.ValidatingAdmissionPolicy{}
	policy.Spec.MatchConstraints = &v1.MatchResources{}
	policy.Spec.Variables = one.Variables
	for _, resource := range one.Resources {
		group, version, plural, err := split(resource)
		if err != nil {
			return nil, err
		}
		policy.Spec.MatchConstraints.ResourceRules = append(policy.Spec.MatchConstraints.ResourceRules, v1.NamedRuleWithOperations{
			RuleWithOperations: v1.RuleWithOperations{Rule: v1.Rule{
				APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{plural},
			}},
		})
	}
	if one.Params != "" {
		gvk, ok := found[one.Params]
		if !ok {
			return nil, fmt.Errorf("kinds.json has no %q", one.Params)
		}
		policy.Spec.ParamKind = &v1.ParamKind{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind}
	}
	var verdicts []verdict
	for _, raw := range one.Checks {
		var expression string
		if err := json.Unmarshal(raw, &expression); err != nil {
			return nil, err
		}
		policy.Spec.Validations = []v1.Validation{{Expression: expression}}
		result := verdict{Resources: one.Resources, Params: one.Params, Variables: one.Variables, Expression: expression}
		for _, warning := range checker.Check(policy) {
			result.Warning = stable(warning.Warning, found)
		}
		verdicts = append(verdicts, result)
	}
	return verdicts, nil
}

// stable removes the number that upstream appends to each kind to make the name of its type unique.
func stable(warning string, found map[string]schema.GroupVersionKind) string {
	for _, gvk := range found {
		numbered := regexp.MustCompile(`\b` + gvk.Kind + `[0-9]{1,9}\b`)
		warning = numbered.ReplaceAllString(warning, gvk.Kind)
	}
	return warning
}
