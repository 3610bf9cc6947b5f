package coalescer

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const vectors = "../../vectors"

// Hex is bytes that JSON has as hexadecimal digits.
type Hex []byte

func (h *Hex) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}

// load reads the cases of a file of vectors.
func load[Case any](t *testing.T, name string) []Case {
	t.Helper()
	var file struct {
		Version int
		Cases   []Case
	}
	text, err := os.ReadFile(filepath.Join(vectors, name))
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil || file.Version != 1 || len(file.Cases) == 0 {
		t.Fatalf("%s: version %d, %d cases, error %v", name, file.Version, len(file.Cases), err)
	}
	return file.Cases
}

type aggregation struct {
	Name  string
	Polls [][]Hex
	Left  []struct {
		Packets      int
		VirtioNetHdr Hex `json:"virtio_net_hdr"`
		Packet       Hex
	}
}

func (c *aggregation) run() (left []Packet) {
	for _, poll := range c.Polls {
		var frames [][]byte
		for _, frame := range poll {
			frames = append(frames, frame)
		}
		left = append(left, Coalesce(frames)...)
	}
	return left
}

// mergesLess says where this coalescer merges less than the vectors do.
func mergesLess(name string) bool {
	return strings.HasPrefix(name, "UDP: ") || strings.HasSuffix(name, "options, identical: IPv6")
}

func TestAggregation(t *testing.T) {
	for _, c := range load[aggregation](t, "aggregation.json") {
		left := c.run()
		if mergesLess(c.Name) {
			continue // Judged by TestFaithful.
		}
		if len(left) != len(c.Left) {
			t.Errorf("%s: %d packets left, not %d", c.Name, len(left), len(c.Left))
			continue
		}
		for index, expected := range c.Left {
			if !bytes.Equal(left[index].Bytes, expected.Packet) {
				t.Errorf("%s: packet %d is %x, not %x", c.Name, index, left[index].Bytes, []byte(expected.Packet))
			}
			if !bytes.Equal(left[index].Header[:], expected.VirtioNetHdr) {
				t.Errorf("%s: the header of packet %d is %x, not %x", c.Name, index, left[index].Header, []byte(expected.VirtioNetHdr))
			}
		}
	}
}

// writeRecords writes what `superpacket check` reads.
func writeRecords(path string, packets []Packet) error {
	file := []byte("superpacket-records 1 ethernet 10\n")
	for _, packet := range packets {
		file = binary.LittleEndian.AppendUint32(file, uint32(len(packet.Header)+len(packet.Bytes)))
		file = append(file, packet.Header[:]...)
		file = append(file, packet.Bytes...)
	}
	return os.WriteFile(path, file, 0o644)
}

// check runs `superpacket check`, and returns what it printed and its exit code.
func check(t *testing.T, packets []Packet) (string, int) {
	t.Helper()
	program := os.Getenv("SUPERPACKET")
	if program == "" {
		program = "superpacket"
	}
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v: cargo build -p superpacket-cli, and set SUPERPACKET to the program", err)
		}
		t.Skipf("skipped: %v; set SUPERPACKET to the program", err)
	}
	path := filepath.Join(t.TempDir(), "left.records")
	if err := writeRecords(path, packets); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "check", path, "--origin", filepath.Join(vectors, "aggregation.pcapng"))
	output, _ := command.CombinedOutput()
	return string(output), command.ProcessState.ExitCode()
}

func TestFaithful(t *testing.T) {
	var left []Packet
	for _, c := range load[aggregation](t, "aggregation.json") {
		left = append(left, c.run()...)
	}
	if output, code := check(t, left); code != 0 {
		t.Errorf("exit code %d:\n%s", code, output)
	}
	// A judge that finds nothing has to be shown something.
	for index := range left {
		if left[index].Header[0] != 0 {
			left[index].Header[4]++
			break
		}
	}
	if output, code := check(t, left); code != 1 || !strings.Contains(output, "gso-size") {
		t.Errorf("exit code %d:\n%s", code, output)
	}
}

func TestChecksums(t *testing.T) {
	type checksum struct {
		Name  string
		Bytes *Hex
		Sum   uint16
	}
	ran := 0
	for _, c := range load[checksum](t, "checksum.json") {
		if c.Bytes == nil {
			continue // A packet to be completed.
		}
		ran++
		if sum := Sum(0, *c.Bytes); sum != uint32(c.Sum) {
			t.Errorf("%s: %#04x, not %#04x", c.Name, sum, c.Sum)
		}
	}
	if ran == 0 {
		t.Error("no case has bytes")
	}
}

func TestToeplitz(t *testing.T) {
	type toeplitz struct {
		Name       string
		Key, Input Hex
		Hash       uint32
	}
	for _, c := range load[toeplitz](t, "toeplitz.json") {
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
			t.Errorf("%s: %#08x, not %#08x", c.Name, hash, c.Hash)
		}
	}
}
