// Renders the templates of a chart as Helm does, as far as ours go: text/template with the functions of sprig, and toYaml.
// In: the directory of the templates as an argument, their data as JSON on standard input. Out: the documents.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"github.com/Masterminds/sprig"
)

func render(directory string) error {
	var data map[string]interface{}
	if err := json.NewDecoder(os.Stdin).Decode(&data); err != nil {
		return err
	}
	functions := sprig.TxtFuncMap()
	// JSON is YAML.
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := json.Marshal(value)
		return string(text), err
	}
	// A value that does not exist is an error here, where Helm renders nothing.
	templates := template.New("chart").Funcs(functions).Option("missingkey=error")
	files, err := filepath.Glob(filepath.Join(directory, "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		parsed, err := templates.New(filepath.Base(file)).Parse(string(text))
		if err != nil {
			return err
		}
		fmt.Println("---")
		if err := parsed.Execute(os.Stdout, data); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if err := render(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
