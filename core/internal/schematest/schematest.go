// Package schematest checks JSON by the schemas that are published, for tests.
package schematest

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Read reads a schema, and returns what checks a text by it.
func Read(t *testing.T, file string) func(text string) error {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(text, &s.root); err != nil {
		t.Fatal(err)
	}
	return func(text string) error {
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			return err
		}
		return s.check(s.root, value, "")
	}
}

// schema is as much of JSON schema as the published ones use.
type schema struct{ root map[string]any }

func (s *schema) check(rule map[string]any, value any, at string) error {
	fail := func(what any) error { return fmt.Errorf("%s: %v: %v", at, what, value) }
	number, isNumber := value.(float64)
	text, isText := value.(string)
	items, isArray := value.([]any)
	fields, isObject := value.(map[string]any)
	types := map[string]bool{"number": isNumber, "string": isText, "array": isArray,
		"integer": isNumber && number == float64(int64(number)), "object": isObject,
		"boolean": value == true || value == false}
	for name, want := range rule {
		ok := true
		switch name {
		case "type":
			ok = types[want.(string)]
		case "const":
			ok = value == want
		case "enum":
			ok = slices.Contains(want.([]any), value)
		case "minimum":
			ok = !isNumber || number >= want.(float64)
		case "maximum":
			ok = !isNumber || number <= want.(float64)
		case "maxLength":
			ok = !isText || len(text) <= int(want.(float64))
		case "pattern":
			ok = !isText || regexp.MustCompile(want.(string)).MatchString(text)
		case "minItems":
			ok = !isArray || len(items) >= int(want.(float64))
		case "maxItems":
			ok = !isArray || len(items) <= int(want.(float64))
		case "required":
			for _, field := range want.([]any) {
				_, has := fields[field.(string)]
				ok = ok && has
			}
		case "oneOf":
			fit := 0
			for _, one := range want.([]any) {
				if s.check(one.(map[string]any), value, at) == nil {
					fit++
				}
			}
			ok = fit == 1
		case "$ref":
			to := strings.TrimPrefix(want.(string), "#/$defs/")
			if err := s.check(s.root["$defs"].(map[string]any)[to].(map[string]any), value, at); err != nil {
				return err
			}
		}
		if !ok {
			return fail(name)
		}
	}
	return s.checkParts(rule, items, fields, at)
}

// checkParts checks the items of an array, and the fields of an object.
func (s *schema) checkParts(rule map[string]any, items []any, fields map[string]any,
	at string) error {
	for i, item := range items {
		of, ok := rule["items"].(map[string]any)
		if prefix, has := rule["prefixItems"].([]any); has && i < len(prefix) {
			of, ok = prefix[i].(map[string]any), true
		}
		if ok {
			if err := s.check(of, item, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	}
	properties, has := rule["properties"].(map[string]any)
	for name, value := range fields {
		of, ok := properties[name].(map[string]any)
		if has && !ok {
			return fmt.Errorf("%s: there is no field %s", at, name)
		}
		if ok {
			if err := s.check(of, value, at+"."+name); err != nil {
				return err
			}
		}
	}
	return nil
}
