package offload

import (
	"bytes"
	"encoding/binary"
	"testing"

	"example/superpacket-check/judge"
)

// What a TUN device gives nobody who has not asked for it by TUNSETOFFLOAD, as this package has not.
const (
	tunnels   = "tunnels come with TUN_F_UDP_TUNNEL_GSO and a header of 24 bytes alone"
	fragments = "fragments come with TUN_F_UFO alone"
)

func TestAggregation(t *testing.T) {
	left := judge.Records{Link: "ethernet", HeaderLength: HeaderLength}
	judge.Run(t, "aggregation.json", nil, 0, func(t *testing.T, c judge.Aggregation) {
		var packets []Packet
		for _, poll := range c.Polls {
			var frames [][]byte
			for _, frame := range poll {
				frames = append(frames, frame)
			}
			packets = append(packets, Coalesce(frames)...)
		}
		for _, packet := range packets {
			left.Add(packet.Header.Append(nil), packet.Bytes)
		}
		if len(packets) != len(c.Left) {
			t.Fatalf("%d packets left, not %d", len(packets), len(c.Left))
		}
		for index, expected := range c.Left {
			if !bytes.Equal(packets[index].Bytes, expected.Packet) {
				t.Errorf("packet %d is %x, not %x", index, packets[index].Bytes, []byte(expected.Packet))
			}
			if header := packets[index].Header.Append(nil); !bytes.Equal(header, expected.Header) {
				t.Errorf("the header of packet %d is %x, not %x", index, header, []byte(expected.Header))
			}
		}
	})
	origin := judge.Path(t, "aggregation.pcapng")
	if report := judge.Check(t, left, origin); report.Verdict != "faithful" {
		t.Error(report.Text)
	}
	// A judge that finds nothing has to be shown something.
	for _, packet := range left.Packets {
		if packet[1] != gsoNone {
			packet[4]++ // gso_size
			break
		}
	}
	if report := judge.Check(t, left, origin); report.ByRule["gso-size"] != 1 {
		t.Error(report.Text)
	}
}

func TestDatagramsInOnePacket(t *testing.T) {
	// A datagram over IPv6, which has no identification: any number of the same are alike.
	frame := append(bytes.Repeat([]byte{2}, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 9, udp, 64)
	frame = append(frame, bytes.Repeat([]byte{1}, 32)...)
	frame = append(frame, 0, 1, 0, 2, 0, 9, 0, 0, 'x')
	at, ok := locate(frame)
	at.setPartial(frame)
	Complete(frame, at.transport, 6)
	var frames [][]byte
	for len(frames) <= maxMerged {
		frames = append(frames, frame)
	}
	left := Coalesce(frames)
	if !ok || len(left) != 2 || len(left[0].Bytes) != len(frame)-1+maxMerged || len(left[1].Bytes) != len(frame) {
		t.Errorf("%d packets left: %v", len(left), left)
	}
}

func TestSegmentation(t *testing.T) {
	given := judge.Records{Link: "ethernet", HeaderLength: 12}
	made := judge.Records{Link: "ethernet"}
	skip := map[string]string{
		"TCP over IPv4 in VXLAN over IPv4": tunnels,
		"TCP over IPv4 in VXLAN over IPv6": tunnels,
		"UDP over IPv4 to IP fragments":    fragments,
	}
	judge.Run(t, "segmentation.json", skip, 3, func(t *testing.T, c judge.Segmentation) {
		segments, err := Split(ReadHeader(c.Header), c.Packet)
		if err != nil || len(segments) != len(c.Segments) {
			t.Fatalf("%d segments, not %d; error %v", len(segments), len(c.Segments), err)
		}
		for index, expected := range c.Segments {
			if !bytes.Equal(segments[index], expected) {
				t.Errorf("segment %d is %x, not %x", index, segments[index], []byte(expected))
			}
			made.Add(nil, segments[index])
		}
		given.Add(c.Header, c.Packet)
	})
	origin := given.Write(t)
	if report := judge.Check(t, made, origin); report.Verdict != "faithful" {
		t.Error(report.Text)
	}
	made.Packets[1][38]++ // The sequence number of the second segment.
	if report := judge.Check(t, made, origin); report.ByRule["sequence"] != 1 {
		t.Error(report.Text)
	}
}

func TestVirtio(t *testing.T) {
	skip := map[string]string{
		"VXLAN over IPv6": tunnels,
		"outer_th_offset is not the outer UDP header": tunnels,
		"inner_nh_offset is not the inner IP header":  tunnels,
	}
	judge.Run(t, "virtio.json", skip, 3, func(t *testing.T, c judge.Virtio) {
		header := ReadHeader(c.Header)
		if written := header.Append(nil); !bytes.Equal(written, c.Header[:HeaderLength]) {
			t.Errorf("written, the header is %x, not %x", written, []byte(c.Header))
		}
		size, checksum, err := header.Meaning(c.Packet)
		var wrong error
		if c.Meaning.Error != "" {
			wrong = FieldError(c.Meaning.Error)
		}
		if err != wrong {
			t.Fatalf("error %v, not %v", err, wrong)
		}
		if err != nil {
			return
		}
		expected := 0 // It is not to be cut.
		if c.Meaning.Size != nil {
			expected = *c.Meaning.Size
		}
		if size != expected || string(checksum) != c.Meaning.Checksum {
			t.Errorf("segments of %d bytes, checksum %s, not %d and %s", size, checksum, expected, c.Meaning.Checksum)
		}
	})
}

func TestChecksums(t *testing.T) {
	judge.Run(t, "checksum.json", nil, 0, func(t *testing.T, c judge.Checksum) {
		if c.Bytes != nil {
			if sum := Sum(0, *c.Bytes); sum != uint32(c.Sum) {
				t.Errorf("%#04x, not %#04x", sum, c.Sum)
			}
			return
		}
		at, ok := locate(c.Packet)
		if sum := at.pseudoHeader(c.Packet); !ok || sum != uint32(c.PseudoHeader) {
			t.Errorf("the pseudo-header's sum is %#04x, not %#04x", sum, c.PseudoHeader)
		}
		if Complete(c.Packet, c.Start, c.Offset); !bytes.Equal(c.Packet, c.Complete) {
			t.Errorf("%x, not %x", []byte(c.Packet), []byte(c.Complete))
		}
	})
}

func TestToeplitz(t *testing.T) {
	judge.Run(t, "toeplitz.json", nil, 0, func(t *testing.T, c judge.Toeplitz) {
		var hash uint32
		window := binary.BigEndian.Uint64(c.Key)
		for index, value := range c.Input {
			for bit := 7; bit >= 0; bit-- {
				if value>>bit&1 == 1 {
					hash ^= uint32(window >> 32)
				}
				window <<= 1
			}
			if index+8 < len(c.Key) {
				window |= uint64(c.Key[index+8])
			}
		}
		if hash != c.Hash {
			t.Errorf("%#08x, not %#08x", hash, c.Hash)
		}
	})
}
