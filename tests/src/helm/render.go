// Renders a chart as Helm does, as far as ours goes: text/template with the functions of sprig, toYaml and .Files.Get, and the
// documents in the order in which they are made.
// In: the directory of the chart as an argument, the data of its templates as JSON on standard input. Out: the documents.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v2"
)

// What Helm makes before everything else, in its order.
var first = []string{"Namespace", "ServiceAccount", "ConfigMap", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}

func rank(kind string) int {
	for place, name := range first {
		if name == kind {
			return place
		}
	}
	return len(first)
}

// files has the files of the chart.
type files struct{ chart string }

// Get is an error for a file that does not exist, where Helm has an empty text.
func (files files) Get(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(files.chart, name))
	return string(text), err
}

type document struct {
	kind, text string
}

func render(chart string) error {
	var data map[string]interface{}
	if err := json.NewDecoder(os.Stdin).Decode(&data); err != nil {
		return err
	}
	data["Files"] = files{chart}
	functions := sprig.TxtFuncMap()
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	// A value that does not exist is an error here, where Helm renders nothing.
	templates := template.New("chart").Funcs(functions).Option("missingkey=error")
	names, err := filepath.Glob(filepath.Join(chart, "templates", "*.yaml"))
	if err != nil {
		return err
	}
	var documents []document
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		parsed, err := templates.New(filepath.Base(name)).Parse(string(text))
		if err != nil {
			return err
		}
		var rendered strings.Builder
		if err := parsed.Execute(&rendered, data); err != nil {
			return err
		}
		one := strings.TrimSpace(rendered.String())
		if one == "" {
			continue
		}
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(one), &head); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		documents = append(documents, document{head.Kind, one})
	}
	sort.SliceStable(documents, func(i, j int) bool { return rank(documents[i].kind) < rank(documents[j].kind) })
	for _, document := range documents {
		fmt.Printf("---\n%s\n", document.text)
	}
	return nil
}

func main() {
	if err := render(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
