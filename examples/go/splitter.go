package offload

import "encoding/binary"

// Split cuts a super-packet into what a wire carries, with complete checksums. What is not to be
// cut comes back alone, its checksum completed if it was partial.
func Split(header Header, frame []byte) ([][]byte, error) {
	size, checksum, err := header.Meaning(frame)
	if err != nil {
		return nil, err
	}
	if size == 0 {
		if checksum == Partial {
			frame = append([]byte(nil), frame...)
			Complete(frame, int(header.Start), int(header.Offset))
		}
		return [][]byte{frame}, nil
	}
	at, _ := locate(frame) // Meaning has found them.
	var segments [][]byte
	for begin := at.payload; begin < len(frame); begin += size {
		end := begin + size
		if end > len(frame) {
			end = len(frame)
		}
		segment := append(append([]byte(nil), frame[:at.payload]...), frame[begin:end]...)
		if at.ipv4 {
			id := segment[at.network+4:]
			binary.BigEndian.PutUint16(id, binary.BigEndian.Uint16(id)+uint16(len(segments)))
		}
		if at.protocol == tcp {
			header := segment[at.transport:]
			sequence := binary.BigEndian.Uint32(header[4:]) + uint32(begin-at.payload)
			binary.BigEndian.PutUint32(header[4:], sequence)
			if begin != at.payload {
				header[13] &^= cwr // The receiver is told once (RFC 3168, section 6.1.2).
			}
			if end != len(frame) {
				header[13] &^= fin | psh
			}
		}
		at.setLengths(segment)
		at.setPartial(segment)
		Complete(segment, at.transport, at.checksumOffset())
		segments = append(segments, segment)
	}
	return segments, nil
}
