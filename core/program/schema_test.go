package program

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const schemaFile = "../../docs/reference/goccl.plan-1.schema.json"

// TestSchema compares what the published schema takes with what Parse takes.
func TestSchema(t *testing.T) {
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(text, &s.root); err != nil {
		t.Fatal(err)
	}
	ask := func(text string) error {
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil {
			return err
		}
		return s.check(s.root, value, "")
	}
	for name, make := range written {
		p := make(4, 1)
		if err := ask(string(p.Text())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range [][2]string{
		{`"name": "x"`, `"nome": "x"`}, {`"name": "x", `, ""},
		{`"x"`, `"` + strings.Repeat("x", 65) + `"`},
		{"plan/1", "plan/2"}, {"allreduce", "allsum"}, {`"ranks": 2`, `"ranks": 0`},
		{`"ranks": 2`, `"ranks": 4097`}, {`"ranks": 2`, `"ranks": 1.5`}, {`"ranks": 2`, `"ranks": "2"`},
		{`"ranks": 2`, `"ranks": 2, "order": "mine"`}, {`"ranks": 2`, `"ranks": 2, "symmetric": 1`},
		{`"in": 1`, `"in": 65537`}, {`, "out": 1`, ""}, {`[0, "o", 0, 1]`, `[0, "o", 0]`},
		{`[0, "o", 0, 1]`, `[0, "x", 0, 1]`}, {`[0, "o", 0, 1]`, `[0, "o", -1, 1]`},
		{`[0, "o", 0, 1]`, `[0, "o", 0, 0]`}, {`[0, "o", 0, 1]`, `[0, "o", ["q", 0], 1]`},
		{`[0, "o", 0, 1]`, `[0, "o", 0, 1, 1]`}, {`, "line": "x:1"`, `, "line": 1`},
	} {
		text := strings.Replace(someText, c[0], c[1], 1)
		p, err := Parse([]byte(text))
		if err == nil {
			_, err = Check(p)
		}
		if err == nil || ask(text) == nil {
			t.Errorf("%q for %q: read: %v, schema: %v", c[1], c[0], err, ask(text))
		}
	}
}

// schema is as much of JSON schema as the published one uses.
type schema struct{ root map[string]any }

func (s *schema) check(rule map[string]any, value any, at string) error {
	fail := func(what any) error { return fmt.Errorf("%s: %v: %v", at, what, value) }
	number, isNumber := value.(float64)
	text, isText := value.(string)
	items, isArray := value.([]any)
	fields, isObject := value.(map[string]any)
	types := map[string]bool{"integer": isNumber && number == float64(int64(number)), "string": isText,
		"array": isArray, "object": isObject, "boolean": value == true || value == false}
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
