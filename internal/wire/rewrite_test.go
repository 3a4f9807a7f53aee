package wire

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// substituted stands for every broker in these tests.
var substituted = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 12345}

func substitute(string) (*net.TCPAddr, error) { return substituted, nil }

// naming returns an answer of the given version that names the broker in every
// place where it can, or nil if there is none in that version.
func naming(key, version int16, host string, port int32) kmsg.Response {
	request := kmsg.RequestForKey(key)
	request.SetVersion(version)
	switch r := request.ResponseKind().(type) {
	case *kmsg.MetadataResponse:
		broker := kmsg.NewMetadataResponseBroker()
		broker.NodeID, broker.Host, broker.Port = 7, host, port
		broker.Rack = kmsg.StringPtr("rack")
		r.Brokers = append(r.Brokers, broker, broker)
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic = kmsg.StringPtr("topic")
		r.Topics = append(r.Topics, topic)
		return r
	case *kmsg.FindCoordinatorResponse:
		r.NodeID, r.Host, r.Port = 7, host, port
		coordinator := kmsg.NewFindCoordinatorResponseCoordinator()
		coordinator.Key, coordinator.Host, coordinator.Port = "group", host, port
		absent := kmsg.NewFindCoordinatorResponseCoordinator()
		absent.Key, absent.Port, absent.ErrorCode = "other", -1, 15
		r.Coordinators = append(r.Coordinators, coordinator, absent)
		return r
	case *kmsg.DescribeClusterResponse:
		broker := kmsg.NewDescribeClusterResponseBroker()
		broker.Host, broker.Port = host, port
		r.Brokers = append(r.Brokers, broker)
		return r
	case *kmsg.ProduceResponse:
		if version < 10 {
			return nil
		}
		broker := kmsg.NewProduceResponseBroker()
		broker.Host, broker.Port = host, port
		r.Brokers = append(r.Brokers, broker)
		r.Topics = append(r.Topics, kmsg.NewProduceResponseTopic())
		return r
	case *kmsg.FetchResponse:
		if version < 16 {
			return nil
		}
		broker := kmsg.NewFetchResponseBroker()
		broker.Host, broker.Port = host, port
		r.Brokers = append(r.Brokers, broker)
		partition := kmsg.NewFetchResponseTopicPartition()
		partition.RecordBatches = []byte("records")
		topic := kmsg.NewFetchResponseTopic()
		topic.Partitions = append(topic.Partitions, partition)
		r.Topics = append(r.Topics, topic)
		return r
	case *kmsg.ShareFetchResponse:
		node := kmsg.NewShareFetchResponseNodeEndpoint()
		node.Host, node.Port = host, port
		r.NodeEndpoints = append(r.NodeEndpoints, node)
		return r
	case *kmsg.ShareAcknowledgeResponse:
		node := kmsg.NewShareAcknowledgeResponseNodeEndpoint()
		node.Host, node.Port = host, port
		r.NodeEndpoints = append(r.NodeEndpoints, node)
		return r
	}
	return nil
}

// framed is an answer as bytes.
func framed(response kmsg.Response) []byte {
	frame := []byte{0, 0, 0, 0, 0, 0, 0, 42}
	if response.IsFlexible() && response.Key() != 18 {
		frame = append(frame, 1, 200, 1, 3, 'a', 'b', 'c') // a tag that nobody knows
	}
	frame = response.AppendTo(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

func TestEveryVersionThatNamesBrokersIsRewritten(t *testing.T) {
	keys := 0
	for key, request := range readable {
		named := false
		for version := range request.MaxVersion() + 1 {
			h := header{key: key, version: version}
			theirs := naming(key, version, "broker-with-a-long-name.internal", 9092)
			require.Equal(t, theirs != nil, h.rewritten(), "%s v%d", kmsg.NameForKey(key), version)
			if theirs == nil {
				continue
			}
			named = true
			asked := make(map[string]bool)
			got, err := h.rewrite(framed(theirs), func(server string) (*net.TCPAddr, error) {
				asked[server] = true
				return substituted, nil
			})
			require.NoError(t, err)
			require.Equal(t, framed(naming(key, version, "127.0.0.1", 12345)), got, "%s v%d", kmsg.NameForKey(key), version)
			require.Equal(t, map[string]bool{"broker-with-a-long-name.internal:9092": true}, asked)
		}
		if named {
			keys++
		}
	}
	require.Equal(t, 7, keys)
}

func TestAnswersThatNameNobodyStayAsTheyAre(t *testing.T) {
	for key, request := range readable {
		for version := range request.MaxVersion() + 1 {
			h := header{key: key, version: version}
			if !h.rewritten() {
				continue
			}
			request := kmsg.RequestForKey(key)
			request.SetVersion(version)
			// What follows after the part that is understood stays as well.
			frame := append(framed(request.ResponseKind()), "more"...)
			got, err := h.rewrite(frame, substitute)
			require.NoError(t, err)
			require.Same(t, &frame[0], &got[0])
			require.Equal(t, len(frame), len(got))
		}
	}
}

func TestVersionsAreCutDownToWhatCanBeRead(t *testing.T) {
	for version := range kmsg.NewPtrApiVersionsRequest().MaxVersion() + 1 {
		answer := func(metadata, heartbeat int16) *kmsg.ApiVersionsResponse {
			r := &kmsg.ApiVersionsResponse{Version: version}
			for key, highest := range map[int16]int16{3: metadata, 12: heartbeat} {
				api := kmsg.NewApiVersionsResponseApiKey()
				api.ApiKey, api.MaxVersion = key, highest
				r.ApiKeys = append(r.ApiKeys, api)
			}
			return r
		}
		known := kmsg.NewPtrMetadataRequest().MaxVersion()
		h := header{key: 18, version: version}
		require.True(t, h.rewritten())
		for given, want := range map[int16]int16{known + 1: known, known: known, 1: 1} {
			got, err := h.rewrite(framed(answer(given, 99)), substitute)
			require.NoError(t, err)
			read := &kmsg.ApiVersionsResponse{Version: version}
			require.NoError(t, read.ReadFrom(got[8:]))
			for _, api := range read.ApiKeys {
				require.Equal(t, map[int16]int16{3: want, 12: 99}[api.ApiKey], api.MaxVersion)
			}
		}
		// A broker that does not know the version answers in version 0.
		refusal := &kmsg.ApiVersionsResponse{ErrorCode: 35}
		got, err := h.rewrite(framed(refusal), substitute)
		require.NoError(t, err)
		require.Equal(t, framed(refusal), got)
	}
}

func FuzzRewrite(f *testing.F) {
	for key, request := range readable {
		for _, version := range []int16{0, request.MaxVersion()} {
			if response := naming(key, version, "broker", 9092); response != nil {
				f.Add(key, version, framed(response))
			}
		}
	}
	f.Add(int16(18), int16(3), framed(&kmsg.ApiVersionsResponse{Version: 3}))
	f.Fuzz(func(t *testing.T, key, version int16, frame []byte) {
		h := header{key: key, version: version}
		if known := readable[key]; known != nil && (version < 0 || version > known.MaxVersion()) || !h.rewritten() || len(frame) < 8 {
			return // never asked
		}
		got, err := h.rewrite(frame, substitute)
		if err == nil && &got[0] != &frame[0] {
			require.EqualValues(t, len(got)-4, binary.BigEndian.Uint32(got))
			require.Equal(t, frame[4:8], got[4:8])
		}
	})
}
