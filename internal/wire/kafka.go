package wire

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka stands in front of the brokers of a cluster, of which seeds (host:port) are
// some. Clients find the brokers by the addresses that the brokers advertise; so the
// proxy listens once for each of them, and puts its own addresses in their place in
// every answer that names brokers: Metadata, FindCoordinator, DescribeCluster, and,
// where they redirect a client to a new leader, Produce, Fetch (both KIP-951),
// ShareFetch and ShareAcknowledge. A client that is given [Proxy.Addrs] as its seeds
// never talks to a broker past the proxy, even when brokers come and go.
//
// So that it can read them, the proxy offers no newer version of these requests, and
// of EndTxn, than it knows: ApiVersions answers are cut down to those.
//
// Nobody needs to be listening at the seeds yet. An error is an address that is no
// host:port, or that no port could be opened.
func Kafka(seeds []string) (*Proxy, error) {
	if len(seeds) == 0 {
		return nil, fmt.Errorf("no proxy for Kafka without the address of a broker; give one as host:port")
	}
	return newProxy(seeds, []Kind{Produce, OffsetCommit, TxnOffsetCommit, EndTxn, ShareAcknowledge}, func(c *conn) {
		// A Kafka server never speaks first.
		first, err := c.requests.Peek(1)
		if err != nil {
			return
		}
		if first[0] == tlsHandshake {
			c.tunnel()
			return
		}
		k := &kafka{conn: c}
		c.both(k.forwardRequests, k.passAnswers)
	})
}

// tlsHandshake is the first byte that a TLS client sends (RFC 8446, section 5.1). As
// the first byte of the size of a Kafka request it would mean 352 MiB or more.
const tlsHandshake = 0x16

// kafka is a connection that speaks Kafka's protocol: in both directions messages
// after their size in four bytes.
type kafka struct {
	*conn
	mu sync.Mutex
	// pending are those forwarded requests whose answers matter.
	pending []pendingAnswer
}

// pendingAnswer is a request that waits for an answer. Brokers answer the requests
// of a connection in order.
type pendingAnswer struct {
	header
	due
}

// header is how every request begins.
type header struct {
	key, version int16
	correlation  int32
	// length is up to the end of the client id, without the tags that a flexible
	// header ends with (KIP-482).
	length int
}

// readable has, for each request that the proxy has to understand, whole or in its
// answer, what it knows of it.
var readable = map[int16]kmsg.Request{
	0:  kmsg.NewPtrProduceRequest(),
	1:  kmsg.NewPtrFetchRequest(),
	3:  kmsg.NewPtrMetadataRequest(),
	10: kmsg.NewPtrFindCoordinatorRequest(),
	26: kmsg.NewPtrEndTxnRequest(),
	60: kmsg.NewPtrDescribeClusterRequest(),
	78: kmsg.NewPtrShareFetchRequest(),
	79: kmsg.NewPtrShareAcknowledgeRequest(),
}

// rewritten reports whether the answer to the request may have to be changed.
func (h header) rewritten() bool {
	switch h.key {
	case 0: // Produce: NodeEndpoints since KIP-951
		return h.version >= 10
	case 1: // Fetch: likewise
		return h.version >= 16
	case 3, 10, 60, 78, 79: // Metadata, FindCoordinator, DescribeCluster, ShareFetch, ShareAcknowledge
		return true
	case 18: // ApiVersions
		return h.version <= kmsg.NewPtrApiVersionsRequest().MaxVersion()
	default:
		return false
	}
}

func (k *kafka) forwardRequests() error {
	for {
		if err := k.forwardRequest(); err != nil {
			return err
		}
	}
}

func (k *kafka) forwardRequest() error {
	s := k.requests
	size, err := frameSize(s)
	if err != nil {
		return err
	}
	h, err := k.readHeader(size)
	if err != nil {
		return err
	}
	if known := readable[h.key]; known != nil && h.version > known.MaxVersion() {
		err := fmt.Errorf("connection of client %q to Kafka at %s cut: it sent a %s request of version %d, of which the proxy reads versions up to %d",
			k.ClientID, k.Server, kmsg.NameForKey(h.key), h.version, known.MaxVersion())
		k.proxy.fail(err)
		return err
	}
	k.proxy.requests.Add(1)
	kind, answered := k.kindOf(h, size)
	d := k.count(kind, answered)
	if err := d.at(BeforeForward, s); err != nil {
		return err
	}
	if answered && h.rewritten() || d.awaits() {
		k.mu.Lock()
		k.pending = append(k.pending, pendingAnswer{h, d})
		k.mu.Unlock()
	}
	if err := s.pass(4 + size); err != nil {
		return err
	}
	return d.at(AfterForward, s)
}

// frameSize looks at the size of the next message, which does not include the size
// itself.
func frameSize(s *stream) (int, error) {
	p, err := s.Peek(4)
	if err != nil {
		return 0, err
	}
	size := int32(binary.BigEndian.Uint32(p))
	if size < 0 {
		return 0, fmt.Errorf("a message of %d bytes", size)
	}
	return int(size), nil
}

// maxPlausible is more than any request's version will be for a long time. What has
// a higher one is no request but a token of a SASL exchange from before KIP-152.
const maxPlausible = 255

// unreadable is the header of what is no request.
var unreadable = header{key: -1}

// readHeader looks at the header of the next request, of the given size, and learns
// the client id.
func (k *kafka) readHeader(size int) (header, error) {
	const fixed = 10 // key, version, correlation id, length of the client id
	p, err := k.requests.Peek(4 + min(size, fixed))
	if err != nil {
		return header{}, err
	}
	if size < fixed {
		return unreadable, nil
	}
	r := kbin.Reader{Src: p[4:]}
	h := header{key: r.Int16(), version: r.Int16(), correlation: r.Int32()}
	h.length = fixed + max(0, int(r.Int16()))
	if h.key < 0 || h.version < 0 || h.version > maxPlausible || h.length > size {
		return unreadable, nil
	}
	p, err = k.requests.Peek(4 + h.length)
	if err != nil {
		return header{}, err
	}
	if id := p[4+fixed:]; string(id) != k.ClientID {
		k.ClientID = string(id)
	}
	return h, nil
}

// kindOf returns the kind of the next request, and whether it will be answered.
func (k *kafka) kindOf(h header, size int) (kind Kind, answered bool) {
	switch h.key {
	case 0:
		return Produce, k.wantsAnswer(h, size)
	case 8:
		return OffsetCommit, true
	case 28:
		return TxnOffsetCommit, true
	case 26:
		var request kmsg.EndTxnRequest
		if k.decode(h, size, &request) && request.Commit {
			return EndTxn, true
		}
	case 78:
		var request kmsg.ShareFetchRequest
		// One that does not fit into the window can only be so large by what it
		// acknowledges.
		if 4+size > window || k.decode(h, size, &request) && shareFetchAcknowledges(&request) {
			return ShareAcknowledge, true
		}
	case 79:
		var request kmsg.ShareAcknowledgeRequest
		if 4+size > window || k.decode(h, size, &request) && shareAcknowledges(&request) {
			return ShareAcknowledge, true
		}
	}
	return "", true
}

func shareFetchAcknowledges(request *kmsg.ShareFetchRequest) bool {
	for _, topic := range request.Topics {
		for _, partition := range topic.Partitions {
			if len(partition.AcknowledgementBatches) > 0 {
				return true
			}
		}
	}
	return false
}

func shareAcknowledges(request *kmsg.ShareAcknowledgeRequest) bool {
	for _, topic := range request.Topics {
		for _, partition := range topic.Partitions {
			if len(partition.AcknowledgementBatches) > 0 {
				return true
			}
		}
	}
	return false
}

// decode reads the next request, and reports whether it could.
func (k *kafka) decode(h header, size int, request kmsg.Request) bool {
	if 4+size > window {
		return false
	}
	p, err := k.requests.Peek(4 + size)
	if err != nil {
		return false
	}
	request.SetVersion(h.version)
	r := kbin.Reader{Src: p[4+h.length:]}
	if request.IsFlexible() {
		kmsg.SkipTags(&r)
	}
	return r.Ok() && request.ReadFrom(r.Src) == nil
}

// wantsAnswer reads the beginning of a Produce request up to its acks.
func (k *kafka) wantsAnswer(h header, size int) bool {
	p, err := k.requests.Peek(min(4+size, window))
	if err != nil {
		return true
	}
	r := kbin.Reader{Src: p[4+h.length:]}
	switch {
	case h.version >= 9: // the first flexible version
		kmsg.SkipTags(&r)
		r.CompactNullableString()
	case h.version >= 3: // the first with a transactional id
		r.NullableString()
	}
	acks := r.Int16()
	return acks != 0 || !r.Ok()
}

func (k *kafka) passAnswers() error {
	for {
		if err := k.passAnswer(); err != nil {
			return err
		}
	}
}

func (k *kafka) passAnswer() error {
	s := k.answers
	size, err := frameSize(s)
	if err != nil {
		return err
	}
	p, err := s.Peek(4 + min(size, 4))
	if err != nil {
		return err
	}
	var pending pendingAnswer
	if size >= 4 {
		pending = k.takePending(int32(binary.BigEndian.Uint32(p[4:])))
	}
	if pending.due.strike.conn == nil {
		return s.pass(4 + size)
	}
	var answer []byte
	if pending.rewritten() {
		frame, err := s.take(4 + size)
		if err != nil {
			return err
		}
		if answer, err = pending.rewrite(frame, k.proxy.listen); err != nil {
			k.proxy.fail(fmt.Errorf("connection of client %q to Kafka at %s cut: %w", pending.strike.Conn.ClientID, k.Server, err))
			return err
		}
	}
	if err := pending.at(BeforeAnswer, s); err != nil {
		return err
	}
	if answer != nil {
		_, err = s.to.Write(answer)
	} else {
		err = s.pass(4 + size)
	}
	if err != nil {
		return err
	}
	return pending.at(AfterAnswer, s)
}

// takePending returns the request that an answer belongs to, or nothing if it does
// not matter.
func (k *kafka) takePending(correlation int32) pendingAnswer {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.pending, func(p pendingAnswer) bool { return p.correlation == correlation })
	if i < 0 {
		return pendingAnswer{}
	}
	p := k.pending[i]
	k.pending = slices.Delete(k.pending, i, i+1)
	return p
}

// rewrite returns the answer, size included, that the client gets instead of the
// given one: the same, unless it names brokers or versions that are unreadable here.
// substitute returns the address to give in place of a broker's own.
func (h header) rewrite(frame []byte, substitute func(server string) (*net.TCPAddr, error)) ([]byte, error) {
	name := kmsg.NameForKey(h.key)
	request := kmsg.RequestForKey(h.key)
	request.SetVersion(h.version)
	response := request.ResponseKind()
	const sizes = 8 // size and correlation id
	r := kbin.Reader{Src: frame[sizes:]}
	// ApiVersions has the old header in every version, as its reader cannot know yet
	// what the broker speaks (KIP-511).
	if h.key == 18 {
		if code := r.Int16(); code == 35 { // UNSUPPORTED_VERSION is answered in version 0
			response.SetVersion(0)
		}
		r.Src = frame[sizes:]
	} else if response.IsFlexible() {
		kmsg.SkipTags(&r)
	}
	head := frame[:len(frame)-len(r.Src)]
	// Every kmsg message has this reader; it does not copy the records of a Fetch.
	err := response.(kmsg.UnsafeReadFrom).UnsafeReadFrom(r.Src)
	if err == nil {
		err = r.Complete()
	}
	if err != nil {
		return nil, fmt.Errorf("the answer to its %s request of version %d is unreadable: %w", name, h.version, err)
	}
	changed, err := edit(response, substitute)
	if err != nil {
		return nil, fmt.Errorf("the answer to its %s request of version %d: %w", name, h.version, err)
	}
	if !changed {
		return frame, nil
	}
	edited := response.AppendTo(slices.Clip(head))
	binary.BigEndian.PutUint32(edited, uint32(len(edited)-4))
	return edited, nil
}

// edit changes an answer in place, and reports whether it did.
func edit(response kmsg.Response, substitute func(string) (*net.TCPAddr, error)) (changed bool, err error) {
	broker := func(host *string, port *int32) {
		if *host == "" || err != nil { // where there is no broker, as in errors
			return
		}
		var local *net.TCPAddr
		if local, err = substitute(net.JoinHostPort(*host, strconv.Itoa(int(*port)))); err == nil {
			*host, *port, changed = local.IP.String(), int32(local.Port), true
		}
	}
	switch response := response.(type) {
	case *kmsg.MetadataResponse:
		for i := range response.Brokers {
			broker(&response.Brokers[i].Host, &response.Brokers[i].Port)
		}
	case *kmsg.FindCoordinatorResponse:
		broker(&response.Host, &response.Port) // before version 4
		for i := range response.Coordinators {
			broker(&response.Coordinators[i].Host, &response.Coordinators[i].Port)
		}
	case *kmsg.DescribeClusterResponse:
		for i := range response.Brokers {
			broker(&response.Brokers[i].Host, &response.Brokers[i].Port)
		}
	case *kmsg.ProduceResponse:
		for i := range response.Brokers {
			broker(&response.Brokers[i].Host, &response.Brokers[i].Port)
		}
	case *kmsg.FetchResponse:
		for i := range response.Brokers {
			broker(&response.Brokers[i].Host, &response.Brokers[i].Port)
		}
	case *kmsg.ShareFetchResponse:
		for i := range response.NodeEndpoints {
			broker(&response.NodeEndpoints[i].Host, &response.NodeEndpoints[i].Port)
		}
	case *kmsg.ShareAcknowledgeResponse:
		for i := range response.NodeEndpoints {
			broker(&response.NodeEndpoints[i].Host, &response.NodeEndpoints[i].Port)
		}
	case *kmsg.ApiVersionsResponse:
		for i := range response.ApiKeys {
			api := &response.ApiKeys[i]
			if known := readable[api.ApiKey]; known != nil && api.MaxVersion > known.MaxVersion() {
				api.MaxVersion, changed = known.MaxVersion(), true
			}
		}
	}
	return changed, err
}
