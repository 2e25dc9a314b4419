package image

import (
	"regexp"
	"strings"

	"github.com/caisson-sandbox/caisson"
)

const (
	digestPrefix = "sha256:"
	minPrefix    = 12 // digits of a digest that suffice to name it
	defaultTag   = "latest"
)

var (
	nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}(/[a-z0-9][a-z0-9._-]{0,62})*$`)
	tagForm  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

// parseName checks a name and completes it with the default tag.
func parseName(op, ref string) (string, error) {
	name, tag, ok := strings.Cut(ref, ":")
	if !ok {
		tag = defaultTag
	}
	if len(name) > 255 || !nameForm.MatchString(name) || !tagForm.MatchString(tag) {
		return "", caisson.E(caisson.Invalid, op, ref, "not a template name", nil).
			WithHint("A name is like python or team/python:3.13: parts of up to 63 lowercase letters, digits, dots, dashes and underscores, then a tag.")
	}
	// "sha256:abc" would be taken for a digest by every reader.
	if name == strings.TrimSuffix(digestPrefix, ":") {
		return "", caisson.E(caisson.Invalid, op, ref, "sha256 cannot be a template's name", nil).
			WithHint("Choose another name.")
	}
	return name + ":" + tag, nil
}

// isHex reports whether s is n lowercase hexadecimal digits.
func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}
