// Package coalescer merges TCP packets as Linux's GRO does: one flow at a time, small enough to be
// read in one go. It is not fast. Its tests run the vectors in ../../vectors, and have what it
// writes judged by `superpacket check`.
package coalescer

import (
	"bytes"
	"encoding/binary"
)

const (
	ethernetLength = 14
	maxLength      = 65535 // Of a merged packet, from the IP header on.
	fin, syn, rst  = 1, 2, 4
	psh, ack, urg  = 8, 16, 32
	cwr            = 128
)

// A Packet that leaves: its virtio_net_hdr of 10 bytes, and its bytes from the Ethernet header on.
type Packet struct {
	Header [10]byte
	Bytes  []byte
}

// segment is a frame that may merge.
type segment struct {
	bytes              []byte
	transport, payload int // Where these begin.
	ipv4               bool
}

func (s *segment) sequence() uint32  { return binary.BigEndian.Uint32(s.bytes[s.transport+4:]) }
func (s *segment) id() uint16        { return binary.BigEndian.Uint16(s.bytes[ethernetLength+4:]) }
func (s *segment) flags() byte       { return s.bytes[s.transport+13] }
func (s *segment) setFlags(set byte) { s.bytes[s.transport+13] |= set }
func (s *segment) length() int       { return len(s.bytes) - s.payload }

// held is what the packets so far have merged into.
type held struct {
	segment
	size, count int    // Payload of the first packet, and how many there are.
	last        uint16 // The identification of the last packet.
	fixed       bool   // All identifications are the same.
}

// Sum adds up 16-bit words, the last padded with a zero byte (RFC 1071).
func Sum(sum uint32, data []byte) uint32 {
	for ; len(data) >= 2; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	if len(data) == 1 {
		sum += uint32(data[0]) << 8
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return sum
}

// pseudoHeader sums addresses, protocol and length.
func pseudoHeader(addresses []byte, protocol byte, length int) uint32 {
	return Sum(Sum(uint32(protocol)+uint32(length>>16)+uint32(length&0xffff), nil), addresses)
}

func addresses(frame []byte, ipv4 bool) []byte {
	if ipv4 {
		return frame[ethernetLength+12 : ethernetLength+20]
	}
	return frame[ethernetLength+8 : ethernetLength+40]
}

// parse returns a frame as a segment, if it may merge with others.
func parse(frame []byte) (*segment, bool) {
	if len(frame) < ethernetLength+40 {
		return nil, false
	}
	ip := frame[ethernetLength:]
	s := &segment{bytes: append([]byte(nil), frame...)}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		// No options, padding, fragments or reserved bit.
		total, fragment := int(binary.BigEndian.Uint16(ip[2:])), binary.BigEndian.Uint16(ip[6:])
		if ip[0] != 0x45 || total != len(ip) || fragment&^0x4000 != 0 || ip[9] != 6 || Sum(0, ip[:20]) != 0xffff {
			return nil, false
		}
		s.ipv4, s.transport = true, ethernetLength+20
	case 0x86dd:
		if ip[0]>>4 != 6 || int(binary.BigEndian.Uint16(ip[4:]))+40 != len(ip) || ip[6] != 6 {
			return nil, false
		}
		s.transport = ethernetLength + 40
	default:
		return nil, false
	}
	if len(frame) < s.transport+20 {
		return nil, false
	}
	s.payload = s.transport + int(frame[s.transport+12]>>4)*4
	if s.payload < s.transport+20 || s.payload >= len(frame) || s.flags()&(ack|syn|rst|urg) != ack {
		return nil, false
	}
	tcp := frame[s.transport:]
	return s, Sum(pseudoHeader(addresses(frame, s.ipv4), 6, len(tcp)), tcp) == 0xffff
}

// comparable returns the headers without what may differ between packets that merge.
func (s *segment) comparable() []byte {
	header := append([]byte(nil), s.bytes[:s.payload]...)
	if s.ipv4 {
		copy(header[ethernetLength+2:], make([]byte, 4))  // Length, identification.
		copy(header[ethernetLength+10:], make([]byte, 2)) // Checksum.
	} else {
		copy(header[ethernetLength+4:], make([]byte, 2))
	}
	copy(header[s.transport+4:], make([]byte, 4)) // Sequence number.
	header[s.transport+13] &^= fin | psh
	copy(header[s.transport+16:], make([]byte, 2))
	return header
}

// takes says whether the next packet may join.
func (h *held) takes(next *segment) bool {
	sameFlow := h.ipv4 == next.ipv4 && bytes.Equal(h.comparable(), next.comparable())
	inSequence := next.sequence() == h.sequence()+uint32(h.length())
	if !sameFlow || !inSequence || next.length() > h.size || len(h.bytes)+next.length() > maxLength+ethernetLength {
		return false
	}
	if !h.ipv4 {
		return true
	}
	// Identifications count up, or are all the same; which of both, the second says.
	if h.count == 1 {
		return next.id() == h.last || next.id() == h.last+1
	}
	return h.fixed == (next.id() == h.last) && (h.fixed || next.id() == h.last+1)
}

// join appends a packet, and says whether it is the last.
func (h *held) join(next *segment) (ends bool) {
	if h.ipv4 {
		h.fixed, h.last = next.id() == h.last, next.id()
	}
	h.bytes = append(h.bytes, next.bytes[next.payload:]...)
	h.setFlags(next.flags() & (fin | psh))
	h.count++
	return next.length() < h.size || next.flags()&(fin|psh) != 0
}

// finish writes lengths, checksums and the header.
func (h *held) finish() Packet {
	if h.count == 1 {
		return Packet{Bytes: h.bytes}
	}
	ip, length := h.bytes[ethernetLength:], len(h.bytes)-h.transport
	kind := byte(4)
	if h.ipv4 {
		kind = 1
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], ^uint16(Sum(0, ip[:20])))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
	}
	if h.flags()&cwr != 0 {
		kind |= 0x80
	}
	// The device completes the checksum: the field holds the pseudo-header's sum.
	binary.BigEndian.PutUint16(h.bytes[h.transport+16:], uint16(pseudoHeader(addresses(h.bytes, h.ipv4), 6, length)))
	packet := Packet{Header: [10]byte{1, kind}, Bytes: h.bytes}
	for index, field := range []int{h.payload, h.size, h.transport, 16} {
		binary.LittleEndian.PutUint16(packet.Header[2+2*index:], uint16(field))
	}
	return packet
}

// Coalesce merges the frames of one poll. Whatever does not continue what is held lets it leave
// first, so nothing overtakes anything.
func Coalesce(frames [][]byte) (left []Packet) {
	var current *held
	flush := func() {
		if current != nil {
			left = append(left, current.finish())
			current = nil
		}
	}
	for _, frame := range frames {
		next, ok := parse(frame)
		if !ok {
			flush()
			left = append(left, Packet{Bytes: frame})
			continue
		}
		ends := next.flags()&(fin|psh) != 0
		if current != nil && current.takes(next) {
			ends = current.join(next)
		} else {
			flush()
			current = &held{segment: *next, size: next.length(), count: 1}
			if next.ipv4 {
				current.last = next.id()
			}
		}
		if ends {
			flush()
		}
	}
	flush()
	return left
}
