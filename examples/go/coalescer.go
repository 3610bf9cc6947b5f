package offload

import (
	"bytes"
	"encoding/binary"
)

const (
	maxLength = 65535 // Of a merged packet, from the IP header on.
	maxMerged = 64    // UDP_GRO_CNT_MAX: datagrams in a merged packet.
)

// A Packet that leaves: its header, all zeros if it merged with none, and its bytes from the
// Ethernet header on.
type Packet struct {
	Header Header
	Bytes  []byte
}

// segment is a frame that may merge.
type segment struct {
	headers
	bytes []byte
}

func (s *segment) sequence() uint32 { return binary.BigEndian.Uint32(s.bytes[s.transport+4:]) }
func (s *segment) id() uint16       { return binary.BigEndian.Uint16(s.bytes[s.network+4:]) }
func (s *segment) length() int      { return len(s.bytes) - s.payload }

// flags returns the flags of TCP; UDP has none.
func (s *segment) flags() byte {
	if s.protocol != tcp {
		return 0
	}
	return s.bytes[s.transport+13]
}

// held is what the packets so far have merged into.
type held struct {
	segment
	size, count int    // Payload of the first packet, and how many there are.
	last        uint16 // The identification of the last packet.
	fixed       bool   // All identifications are the same.
}

// parse returns a frame as a segment, if it may merge with others.
func parse(frame []byte) (*segment, bool) {
	at, ok := locate(frame)
	if !ok || at.payload == len(frame) {
		return nil, false
	}
	ip, transport := frame[at.network:], frame[at.transport:]
	if at.ipv4 {
		// No options, padding or reserved bit.
		total, fragment := int(binary.BigEndian.Uint16(ip[2:])), binary.BigEndian.Uint16(ip[6:])
		if ip[0] != 0x45 || total != len(ip) || fragment&^0x4000 != 0 || Sum(0, ip[:20]) != 0xffff {
			return nil, false
		}
	} else if int(binary.BigEndian.Uint16(ip[4:]))+40 != len(ip) {
		return nil, false
	}
	s := &segment{headers: at, bytes: append([]byte(nil), frame...)}
	if at.protocol == tcp {
		// CWR: merged, all would have it, and whoever cuts leaves it on the first.
		if s.flags()&(ack|syn|rst|urg|cwr) != ack {
			return nil, false
		}
	} else if int(binary.BigEndian.Uint16(transport[4:])) != len(transport) || binary.BigEndian.Uint16(transport[6:]) == 0 {
		return nil, false // Without a checksum nobody knows whether it is right.
	}
	return s, Sum(at.pseudoHeader(frame), transport) == 0xffff
}

// comparable returns the headers without what may differ between packets that merge.
func (s *segment) comparable() []byte {
	header := append([]byte(nil), s.bytes[:s.payload]...)
	if s.ipv4 {
		copy(header[s.network+2:], make([]byte, 4))  // Length, identification.
		copy(header[s.network+10:], make([]byte, 2)) // Checksum.
	} else {
		copy(header[s.network+4:], make([]byte, 2))
	}
	copy(header[s.transport+4:], make([]byte, 4)) // Sequence number; length and checksum of UDP.
	if s.protocol == tcp {
		header[s.transport+13] &^= fin | psh
		copy(header[s.transport+16:], make([]byte, 2))
	}
	return header
}

// takes says whether the next packet may join.
func (h *held) takes(next *segment) bool {
	if !bytes.Equal(h.comparable(), next.comparable()) {
		return false
	}
	if next.length() > h.size || len(h.bytes)+next.length() > maxLength+h.network {
		return false
	}
	if h.protocol == tcp && next.sequence() != h.sequence()+uint32(h.length()) {
		return false
	}
	if h.protocol == udp && h.count == maxMerged {
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
	h.count++
	set := next.flags() & (fin | psh)
	if set != 0 {
		h.bytes[h.transport+13] |= set
	}
	return next.length() < h.size || set != 0
}

// finish writes lengths, checksums and the header.
func (h *held) finish() Packet {
	if h.count == 1 {
		return Packet{Bytes: h.bytes}
	}
	h.setLengths(h.bytes)
	h.setPartial(h.bytes) // The device completes it.
	header := Header{
		Flags:  needsChecksum,
		Type:   h.gsoType(),
		Length: uint16(h.payload),
		Size:   uint16(h.size),
		Start:  uint16(h.transport),
		Offset: uint16(h.checksumOffset()),
	}
	return Packet{header, h.bytes}
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
