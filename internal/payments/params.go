package payments

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxBody is how many bytes a request's body may have.
	maxBody = 64 << 10
	// maxDepth is how deep objects and arrays of a JSON body may be nested.
	maxDepth = 8

	// Stripe's limits of metadata (https://docs.stripe.com/api/metadata).
	maxMetadata      = 50
	maxMetadataKey   = 40
	maxMetadataValue = 500
)

// params are the parameters of a request by their names in brackets, such as
// metadata[event_id], whether they came as a form or as JSON.
type params map[string]string

// readParams reads a body that is form-encoded (also where it does not say what it
// is, as with Stripe) or JSON.
func readParams(w http.ResponseWriter, r *http.Request) (params, error) {
	if r.URL.RawQuery != "" {
		return nil, malformed(http.StatusBadRequest, "Parameters of a POST belong in its body, not behind the path.")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, malformed(http.StatusRequestEntityTooLarge, "The body has more than %d bytes.", tooLarge.Limit)
	case err != nil:
		return nil, malformed(http.StatusBadRequest, "The body did not arrive whole.")
	case !utf8.Valid(body):
		return nil, malformed(http.StatusBadRequest, "The body is not valid UTF-8.")
	}
	mediaType := "application/x-www-form-urlencoded"
	if declared := r.Header.Get("Content-Type"); declared != "" {
		if mediaType, _, err = mime.ParseMediaType(declared); err != nil {
			mediaType = ""
		}
	}
	var p params
	switch mediaType {
	case "application/x-www-form-urlencoded":
		p, err = parseForm(string(body))
	case "application/json":
		p, err = parseJSON(body)
	default:
		return nil, malformed(http.StatusUnsupportedMediaType, "The body must be application/x-www-form-urlencoded or application/json.")
	}
	if err != nil {
		return nil, malformed(http.StatusBadRequest, "The body can't be read: %v.", err)
	}
	return p, nil
}

var errEncoding = errors.New("a name or a value holds a NUL or is not valid UTF-8")

// add refuses what would make one request two, or what no table can hold.
func (p params) add(name, value string) error {
	for _, text := range []string{name, value} {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return errEncoding
		}
	}
	if _, twice := p[name]; twice {
		return fmt.Errorf("parameter %q is there twice", short(name))
	}
	p[name] = value
	return nil
}

func parseForm(body string) (params, error) {
	values, err := url.ParseQuery(body)
	if err != nil {
		return nil, errors.New("it is not a form")
	}
	p := make(params)
	for name, all := range values {
		for _, value := range all {
			if err := p.add(name, value); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func parseJSON(body []byte) (params, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber() // an amount is not to be rounded
	p := make(params)
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.New("it is not a JSON object")
	}
	if err := p.flattenObject(decoder, "", 1); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something behind the JSON object")
	}
	return p, nil
}

// errJSON quotes nothing of the body.
var errJSON = errors.New("it is not valid JSON")

// flattenObject adds the members of an object, whose opening brace has been read.
func (p params) flattenObject(decoder *json.Decoder, name string, depth int) error {
	for decoder.More() {
		member, err := decoder.Token()
		key, isString := member.(string)
		if err != nil || !isString {
			return errJSON
		}
		if name != "" {
			key = name + "[" + key + "]"
		}
		if err := p.flatten(decoder, key, depth); err != nil {
			return err
		}
	}
	return closing(decoder)
}

// flatten adds one value under a name. A null is as good as no parameter.
func (p params) flatten(decoder *json.Decoder, name string, depth int) error {
	token, err := decoder.Token()
	if err != nil {
		return errJSON
	}
	switch value := token.(type) {
	case json.Delim:
		if depth == maxDepth {
			return fmt.Errorf("it is nested more than %d deep", maxDepth)
		}
		if value == '{' {
			return p.flattenObject(decoder, name, depth+1)
		}
		for i := 0; decoder.More(); i++ {
			if err := p.flatten(decoder, fmt.Sprintf("%s[%d]", name, i), depth+1); err != nil {
				return err
			}
		}
		return closing(decoder)
	case string:
		return p.add(name, value)
	case json.Number:
		return p.add(name, value.String())
	case bool:
		return p.add(name, strconv.FormatBool(value))
	default:
		return nil
	}
}

func closing(decoder *json.Decoder) error {
	if _, err := decoder.Token(); err != nil {
		return errJSON
	}
	return nil
}

// nameOf is the name of a parameter of the metadata.
func nameOf(metadata string) string { return "metadata[" + metadata + "]" }

// The metadata that the ledger has columns for.
const (
	metadataEventID = "event_id"
	metadataAttempt = "attempt"
)

// fingerprint is the SHA-256 of what is asked for: method, path and parameters,
// each with its length before it, the parameters by name. So a retry may order them
// otherwise, or send as JSON what was a form.
//
// metadata[attempt] is left out. It says who asks and not what is asked for, and it
// differs in just the retry that a key is for: the one of the process that was
// started in the place of a dead one.
func (p params) fingerprint(method, path string) []byte {
	hash := sha256.New()
	add := func(text string) {
		hash.Write(binary.AppendUvarint(nil, uint64(len(text))))
		io.WriteString(hash, text)
	}
	add(method)
	add(path)
	for _, name := range slices.Sorted(maps.Keys(p)) {
		if name != nameOf(metadataAttempt) {
			add(name)
			add(p[name])
		}
	}
	return hash.Sum(nil)
}

// metadata returns the metadata, after it has refused parameters that are neither
// that nor known.
func (p params) metadata(known ...string) (map[string]string, error) {
	metadata := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(p)) {
		if slices.Contains(known, name) {
			continue
		}
		key, isMetadata := strings.CutPrefix(name, "metadata[")
		key, closed := strings.CutSuffix(key, "]")
		if !isMetadata || !closed || strings.ContainsAny(key, "[]") {
			return nil, invalid(name, "parameter_unknown", "Received unknown parameter: %s", short(name))
		}
		switch value := p[name]; {
		case key == "" || utf8.RuneCountInString(key) > maxMetadataKey:
			return nil, invalid(name, "", "A metadata key must have 1 to %d characters.", maxMetadataKey)
		case utf8.RuneCountInString(value) > maxMetadataValue:
			return nil, invalid(name, "", "A metadata value must have at most %d characters.", maxMetadataValue)
		default:
			metadata[key] = value
		}
	}
	if len(metadata) > maxMetadata {
		return nil, invalid("metadata", "", "There are more than %d metadata keys.", maxMetadata)
	}
	return metadata, nil
}

// required returns a parameter that must not be missing or empty.
func (p params) required(name string) (string, error) {
	if p[name] == "" {
		return "", invalid(name, "parameter_missing", "Missing required param: %s.", name)
	}
	return p[name], nil
}

// short is as much of a name that somebody else chose as is worth repeating.
func short(name string) string {
	const most = 60
	if utf8.RuneCountInString(name) <= most {
		return name
	}
	return string([]rune(name)[:most]) + "…"
}
