package order

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// encode returns the request as encoding/json would. Nearly all texts stand in JSON as
// they are, and reflection takes three times as long.
func (p PickRequested) encode() []byte {
	if !plain(p.EventID) || !plain(p.OrderID) {
		value, err := json.Marshal(p)
		if err != nil {
			panic(fmt.Sprintf("order: encode pick request of %q: %v", p.EventID, err)) // strings and a number: cannot fail
		}
		return value
	}
	const longestNumber = 20
	value := make([]byte, 0, len(`{"event_id":"","order_id":"","sequence":}`)+len(p.EventID)+len(p.OrderID)+longestNumber)
	value = append(value, `{"event_id":"`...)
	value = append(value, p.EventID...)
	value = append(value, `","order_id":"`...)
	value = append(value, p.OrderID...)
	value = append(value, `","sequence":`...)
	value = strconv.AppendInt(value, p.Sequence, 10)
	return append(value, '}')
}

// plain says that encoding/json escapes nothing in s.
func plain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= utf8.RuneSelf, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return false
		}
	}
	return true
}
