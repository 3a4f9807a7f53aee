package payments

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"
)

// Secrets are the API keys of the clients. They are kept as hashes: a secret that is
// looked up by its hash tells nothing by the time it takes, and what is printed of
// this by mistake is of no use to anyone.
type Secrets map[[sha256.Size]byte]string

// ParseSecrets reads "client=secret,client2=secret2". A client may have several
// secrets, and a secret has one client. Errors count entries and quote nothing.
func ParseSecrets(list string) (Secrets, error) {
	secrets := make(Secrets)
	for i, entry := range strings.Split(list, ",") {
		client, secret, _ := strings.Cut(strings.TrimSpace(entry), "=")
		if client == "" || secret == "" || !utf8.ValidString(client) {
			return nil, fmt.Errorf("entry %d is not client=secret; write client=secret,client2=secret2", i+1)
		}
		hash := sha256.Sum256([]byte(secret))
		if owner, taken := secrets[hash]; taken && owner != client {
			return nil, fmt.Errorf("entry %d has the secret of another client", i+1)
		}
		secrets[hash] = client
	}
	return secrets, nil
}

func (s Secrets) validate() error {
	if len(s) == 0 {
		return errors.New("there is no client: no request could be let in")
	}
	return nil
}

// client returns the client whose secret the request bears (RFC 6750, section 2.1).
func (s Secrets) client(r *http.Request) (string, bool) {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	client, known := s[sha256.Sum256([]byte(strings.TrimSpace(secret)))]
	return client, known
}
