// Package offload merges the TCP and UDP packets of a TUN or TAP device as Linux's GRO does, and
// cuts super-packets as its GSO does: one flow at a time, small enough to be read in one go. It is
// not fast. Its tests run the vectors in ../../vectors, and have what it makes judged by
// `superpacket check`.
package offload

import "encoding/binary"

const (
	tcp, udp      = 6, 17
	fin, syn, rst = 1, 2, 4
	psh, ack, urg = 8, 16, 32
	cwr           = 128
)

// headers says where the headers of a frame lie, and of what kind they are.
type headers struct {
	network, transport, payload int // Where these begin.
	protocol                    byte
	ipv4                        bool
}

// locate finds the headers of a TCP or UDP packet that is no fragment, behind an Ethernet header
// with up to one VLAN tag.
func locate(frame []byte) (at headers, ok bool) {
	if len(frame) < 18 {
		return at, false
	}
	etherType := binary.BigEndian.Uint16(frame[12:])
	at.network = 14
	if etherType == 0x8100 {
		etherType, at.network = binary.BigEndian.Uint16(frame[16:]), 18
	}
	ip := frame[at.network:]
	switch {
	case etherType == 0x0800 && len(ip) >= 20 && ip[0]>>4 == 4:
		if ip[0]&15 < 5 || binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 {
			return at, false
		}
		at.ipv4, at.protocol, at.transport = true, ip[9], at.network+int(ip[0]&15)*4
	case etherType == 0x86dd && len(ip) >= 40 && ip[0]>>4 == 6:
		next, length := ip[6], 40
		for next == 0 || next == 60 { // Hop-by-hop and destination options (RFC 8200, section 4.2).
			if len(ip) < length+8 {
				return at, false
			}
			next, length = ip[length], length+8+int(ip[length+1])*8
		}
		at.protocol, at.transport = next, at.network+length
	default:
		return at, false
	}
	switch {
	case at.protocol == tcp && len(frame) >= at.transport+20:
		at.payload = at.transport + int(frame[at.transport+12]>>4)*4
		ok = at.payload >= at.transport+20
	case at.protocol == udp:
		at.payload, ok = at.transport+8, true
	}
	return at, ok && at.payload <= len(frame)
}

// checksumOffset returns where the checksum lies in the transport header.
func (at *headers) checksumOffset() int {
	if at.protocol == udp {
		return 6
	}
	return 16
}

// setLengths writes the length fields and the IPv4 header's checksum.
func (at *headers) setLengths(frame []byte) {
	ip := frame[at.network:]
	if at.ipv4 {
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], ^uint16(Sum(0, ip[:at.transport-at.network])))
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
	}
	if at.protocol == udp {
		binary.BigEndian.PutUint16(frame[at.transport+4:], uint16(len(frame)-at.transport))
	}
}

// pseudoHeader sums addresses, protocol and length.
func (at *headers) pseudoHeader(frame []byte) uint32 {
	addresses := frame[at.network+8 : at.network+40]
	if at.ipv4 {
		addresses = frame[at.network+12 : at.network+20]
	}
	length := len(frame) - at.transport
	return Sum(uint32(at.protocol)+uint32(length>>16)+uint32(length&0xffff), addresses)
}

// setPartial puts the pseudo-header's sum where the checksum is to be.
func (at *headers) setPartial(frame []byte) {
	field := frame[at.transport+at.checksumOffset():]
	binary.BigEndian.PutUint16(field, uint16(at.pseudoHeader(frame)))
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

// Complete puts a checksum in place of the pseudo-header's sum: that of all from `start` on, at
// `start` + `offset`. UDP sends 0xFFFF for 0, since 0 says that there is none (RFC 768).
func Complete(frame []byte, start, offset int) {
	checksum := ^uint16(Sum(0, frame[start:]))
	if checksum == 0 && offset == 6 {
		checksum = 0xffff
	}
	binary.BigEndian.PutUint16(frame[start+offset:], checksum)
}
