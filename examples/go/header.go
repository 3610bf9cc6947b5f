package offload

import "encoding/binary"

// HeaderLength is that of a virtio_net_hdr without num_buffers: what a TUN device has by default.
const HeaderLength = 10

// Flags and types of a header (virtio 1.3, section 5.1.6; linux/virtio_net.h).
const (
	needsChecksum, dataValid, rscInfo = 1, 2, 4

	gsoNone, gsoTCPv4, gsoTCPv6, gsoUDP = 0, 1, 4, 5 // gsoUDP is VIRTIO_NET_HDR_GSO_UDP_L4.

	gsoECN = 0x80
)

const maxDatagrams = 128 // UDP_MAX_SEGMENTS: what Linux cuts a super-packet of UDP into, at most.

// A Header is the virtio_net_hdr before a packet. Start and Offset are csum_start and csum_offset.
type Header struct {
	Flags, Type                 byte
	Length, Size, Start, Offset uint16
}

// ReadHeader reads the first 10 bytes, which are little-endian: with TUNSETVNETLE, or where the
// machine is.
func ReadHeader(bytes []byte) Header {
	field := func(at int) uint16 { return binary.LittleEndian.Uint16(bytes[at:]) }
	return Header{bytes[0], bytes[1], field(2), field(4), field(6), field(8)}
}

// Append writes 10 bytes behind what is there.
func (h Header) Append(to []byte) []byte {
	to = append(to, h.Flags, h.Type)
	for _, field := range []uint16{h.Length, h.Size, h.Start, h.Offset} {
		to = append(to, byte(field), byte(field>>8))
	}
	return to
}

// A Checksum is what a header says of the packet's checksum.
type Checksum string

const (
	Unknown  Checksum = "unknown"
	Partial  Checksum = "partial" // The field holds the pseudo-header's sum: see Complete.
	Verified Checksum = "verified"
)

// A FieldError names the field of a header that contradicts itself or its packet.
type FieldError string

func (e FieldError) Error() string { return "virtio_net_hdr: wrong " + string(e) }

// Meaning says into segments of how many bytes a packet is to be cut, 0 if it is not, and what is
// known of its checksum. hdr_len is a hint, and not believed.
func (h Header) Meaning(frame []byte) (size int, checksum Checksum, err error) {
	checksum = Unknown
	if h.Flags&needsChecksum != 0 {
		if h.Flags&rscInfo != 0 { // It gives the same fields another meaning.
			return 0, checksum, FieldError("flags")
		}
		if int(h.Start)+int(h.Offset)+2 > len(frame) {
			return 0, checksum, FieldError("csum_start")
		}
		checksum = Partial
	} else if h.Flags&dataValid != 0 {
		checksum = Verified
	}
	if h.Type == gsoNone {
		return 0, checksum, nil
	}
	at, ok := locate(frame)
	size, payload := int(h.Size), len(frame)-at.payload
	switch {
	case !ok || h.Type&^gsoECN != at.gsoType():
		err = FieldError("gso_type")
	case size == 0 || size == 0xffff: // Linux has another use for 0xffff (GSO_BY_FRAGS).
		err = FieldError("gso_size")
	case at.protocol == udp && checksum != Partial:
		err = FieldError("flags")
	case at.protocol == udp && payload > size*maxDatagrams:
		err = FieldError("gso_size")
	case checksum == Partial && int(h.Start) != at.transport:
		err = FieldError("csum_start")
	case checksum == Partial && int(h.Offset) != at.checksumOffset():
		err = FieldError("csum_offset")
	case payload <= size:
		size = 0
	}
	return size, checksum, err
}

// gsoType returns the type of a super-packet with these headers.
func (at *headers) gsoType() byte {
	switch {
	case at.protocol == udp:
		return gsoUDP
	case at.ipv4:
		return gsoTCPv4
	}
	return gsoTCPv6
}
