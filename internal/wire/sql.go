package wire

import "strings"

// statements counts the statements of an SQL text, split as PostgreSQL splits it
// (PostgreSQL manual, section 4.1, with standard_conforming_strings on), and returns
// the number, from 1, of the first one that commits, or 0 if none does. A text
// without any counts as one: PostgreSQL answers it as such.
func statements(text string) (count, commit int) {
	first := ""    // token of the statement, in lower case
	previous := "" // token
	depth := 0     // in BEGIN ATOMIC … END, where semicolons do not end the statement
	end := func() {
		if first == "" {
			return
		}
		count++
		if commit == 0 && (first == "commit" || first == "end") {
			commit = count
		}
		first, previous, depth = "", "", 0
	}
	for len(text) > 0 {
		var token string
		if n := skipped(text); n > 0 {
			text = text[n:]
			continue
		}
		token, text = text[:tokenLength(text)], text[tokenLength(text):]
		if token == ";" && depth == 0 {
			end()
			continue
		}
		token = strings.ToLower(token)
		if first == "" {
			first = token
		}
		switch {
		case token == "atomic" && previous == "begin" && first == "create", depth > 0 && token == "case":
			depth++
		case depth > 0 && token == "end":
			depth--
		}
		previous = token
	}
	end()
	return max(count, 1), commit
}

// skipped is the length of the white space or comment that the text begins with.
func skipped(text string) int {
	if n := len(text) - len(strings.TrimLeft(text, " \t\n\r\f\v")); n > 0 {
		return n
	}
	if strings.HasPrefix(text, "--") {
		return upTo(text, "\n", 0)
	}
	if !strings.HasPrefix(text, "/*") {
		return 0
	}
	for n, depth := 2, 1; n < len(text); { // they nest
		switch {
		case strings.HasPrefix(text[n:], "/*"):
			n, depth = n+2, depth+1
		case strings.HasPrefix(text[n:], "*/"):
			n, depth = n+2, depth-1
			if depth == 0 {
				return n
			}
		default:
			n++
		}
	}
	return len(text)
}

// tokenLength is the length of the token that the text begins with: a word, a quoted
// piece, or one other character.
func tokenLength(text string) int {
	switch c := text[0]; {
	case c == '\'' || c == '"':
		return quoted(text, 0, false)
	case (c == 'e' || c == 'E') && strings.HasPrefix(text[1:], "'"):
		return quoted(text, 1, true)
	case c == '$':
		n := 1
		for n < len(text) && isWord(text[n]) {
			n++
		}
		// $1 is a parameter, as no tag begins with a digit.
		if n < len(text) && text[n] == '$' && (text[1] < '0' || text[1] > '9') {
			return upTo(text, text[:n+1], n+1)
		}
		return n
	case isWord(c):
		n := 1
		for n < len(text) && (isWord(text[n]) || text[n] == '$') {
			n++
		}
		return n
	default:
		return 1
	}
}

// quoted is the length of a piece whose opening quote is at text[open]. A doubled
// quote in it is two pieces in a row, which comes to the same.
func quoted(text string, open int, backslashes bool) int {
	for n := open + 1; n < len(text); n++ {
		switch {
		case text[n] == text[open]:
			return n + 1
		case backslashes && text[n] == '\\':
			n++
		}
	}
	return len(text)
}

// upTo is the length of the text up to and with the first end that is not before
// from, or of all of it.
func upTo(text, end string, from int) int {
	if i := strings.Index(text[from:], end); i >= 0 {
		return from + i + len(end)
	}
	return len(text)
}

func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c >= 0x80
}
