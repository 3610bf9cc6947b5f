// Package wireguardgo judges what wireguard-go, in Tailscale's fork, exports of its offloads. Its
// tests state what was observed with a version, and fail where that is no longer so.
package wireguardgo

import (
	"bytes"
	"encoding/binary"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/tailscale/wireguard-go/tun"

	"example/superpacket-check/judge"
)

const (
	module   = "github.com/tailscale/wireguard-go"
	ethernet = 14 // The vectors begin at the Ethernet header, a TUN device's packets behind it.
)

// A verdict names the cases in which a version differs from the vectors, and the rules that it
// breaks, with the number of violations.
type verdict struct {
	segmentation, checksum []string
	broken                 map[string]int
}

var observed = map[string]verdict{
	"v0.0.0-20260928213032-417aef361226": {
		// CWR is on every segment; a UDP checksum of 0 is sent as it is.
		segmentation: []string{"TCP over IPv4: CWR", "UDP over IPv6: a segment whose checksum is 0 before it is sent"},
		checksum:     []string{"a partial checksum: UDP over IPv6: 0 is sent as 0xFFFF"},
		broken:       map[string]int{"cwr": 3, "udp-zero": 1},
	},
}

// expected returns the verdict on the version that go.mod has.
func expected(t *testing.T) verdict {
	t.Helper()
	output, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module).Output()
	version := strings.TrimSpace(string(output))
	verdict, ok := observed[version]
	if err != nil || !ok {
		t.Errorf("no verdict on version %q is written down; error %v", version, err)
	}
	t.Logf("%s %s", module, version)
	return verdict
}

func compare(t *testing.T, what string, found, expected any) {
	t.Helper()
	t.Logf("%s: %#v", what, found)
	if !reflect.DeepEqual(found, expected) {
		t.Errorf("%s: written down are %#v", what, expected)
	}
}

// split has GSOSplit cut a packet of the vectors.
func split(packet []byte, options tun.GSOOptions) (segments [][]byte, err error) {
	slab, packets := make([]byte, 1<<16), make([]tun.ReadPacket, 128)
	count, err := tun.GSOSplit(packet[ethernet:], options, slab, packets, 0)
	for _, packet := range packets[:count] {
		segments = append(segments, slab[packet.Offset:packet.Offset+packet.Size])
	}
	return segments, err
}

func TestGSOSplit(t *testing.T) {
	skip := map[string]string{
		"TCP over IPv4 in a VLAN":          "a TUN device has no link header",
		"TCP over IPv4 in VXLAN over IPv4": "GSOSplit has no type for tunnels",
		"TCP over IPv4 in VXLAN over IPv6": "GSOSplit has no type for tunnels",
		"UDP over IPv4 to IP fragments":    "GSOSplit has no type for fragments",
	}
	types := map[byte]tun.GSOType{1: tun.GSOTCPv4, 4: tun.GSOTCPv6, 5: tun.GSOUDPL4}
	given := judge.Records{Link: "ethernet", HeaderLength: 12}
	made := judge.Records{Link: "ip"}
	var differing []string
	judge.Run(t, "segmentation.json", skip, 4, func(t *testing.T, c judge.Segmentation) {
		field := func(at int) uint16 { return binary.LittleEndian.Uint16(c.Header[at:]) }
		segments, err := split(c.Packet, tun.GSOOptions{
			GSOType:    types[c.Header[1]&0x7f], // Without ECN, which its types do not have.
			HdrLen:     field(2) - ethernet,
			GSOSize:    field(4),
			CsumStart:  field(6) - ethernet,
			CsumOffset: field(8),
			NeedsCsum:  true,
		})
		if err != nil {
			t.Fatal(err)
		}
		same := len(segments) == len(c.Segments)
		for index, segment := range segments {
			same = same && bytes.Equal(segment, c.Segments[index][ethernet:])
			made.Add(nil, segment)
		}
		given.Add(c.Header, c.Packet)
		if !same {
			differing = append(differing, c.Name)
		}
	})
	verdict := expected(t)
	compare(t, "differing from segmentation.json", differing, verdict.segmentation)
	report := judge.Check(t, made, given.Write(t))
	if compare(t, "rules broken", report.ByRule, verdict.broken); t.Failed() {
		t.Log(report.Text)
	}
}

func TestChecksums(t *testing.T) {
	var differing []string
	judge.Run(t, "checksum.json", nil, 0, func(t *testing.T, c judge.Checksum) {
		same := false
		if c.Bytes != nil {
			same = tun.Checksum(*c.Bytes, 0) == c.Sum
		} else {
			// Of a packet that is not to be cut, GSOSplit completes the checksum.
			complete, err := split(c.Packet, tun.GSOOptions{
				CsumStart:  uint16(c.Start - ethernet),
				CsumOffset: uint16(c.Offset),
				NeedsCsum:  true,
			})
			same = err == nil && len(complete) == 1 && bytes.Equal(complete[0], c.Complete[ethernet:])
		}
		if !same {
			differing = append(differing, c.Name)
		}
	})
	compare(t, "differing from checksum.json", differing, expected(t).checksum)
}
