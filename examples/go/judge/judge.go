// Package judge gives code that merges or cuts packets a verdict: it loads the vectors, writes what
// the code made as a file of records, and has `superpacket check` compare it with the original.
package judge

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Hex is bytes that JSON has as hexadecimal digits.
type Hex []byte

func (h *Hex) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}

// Aggregation is a case of aggregation.json: frames of each poll, and what leaves.
type Aggregation struct {
	Name  string
	Polls [][]Hex
	Left  []struct {
		Packets int
		Header  Hex `json:"virtio_net_hdr"`
		Packet  Hex
	}
}

// Segmentation is a case of segmentation.json: a super-packet, and its segments.
type Segmentation struct {
	Name     string
	Header   Hex `json:"virtio_net_hdr"`
	Packet   Hex
	Segments []Hex
}

// Virtio is a case of virtio.json: a header and its packet, and what the header means.
type Virtio struct {
	Name    string
	Header  Hex `json:"virtio_net_hdr"`
	Packet  Hex
	Meaning struct {
		Error    string
		Size     *int `json:"segment_size"`
		Checksum string
	}
}

// Checksum is a case of checksum.json: bytes and their sum, or, where Bytes is nil, a packet with a
// partial checksum, and the complete one.
type Checksum struct {
	Name         string
	Bytes        *Hex
	Sum          uint16
	Packet       Hex
	Start        int    `json:"csum_start"`
	Offset       int    `json:"csum_offset"`
	PseudoHeader uint16 `json:"pseudo_header"`
	Complete     Hex
}

// Toeplitz is a case of toeplitz.json.
type Toeplitz struct {
	Name       string
	Key, Input Hex
	Hash       uint32
}

// Path returns where a file of the vectors lies: in the folder that SUPERPACKET_VECTORS names, or,
// where that is not set, in the folder `vectors` in a folder above the test's.
func Path(t *testing.T, name string) string {
	t.Helper()
	path, err := find(os.Getenv("SUPERPACKET_VECTORS"), name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// find looks for a file in a folder; without one, in `vectors` in a folder above this one.
func find(folder, name string) (string, error) {
	if folder != "" {
		path := filepath.Join(folder, name)
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("SUPERPACKET_VECTORS: %w", err)
		}
		return path, nil
	}
	for above := ".."; len(above) < 60; above = filepath.Join(above, "..") {
		path := filepath.Join(above, "vectors", name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no folder above this one has vectors/%s; set SUPERPACKET_VECTORS to the folder", name)
}

// Run gives each case of a file to `run`, but those that `skip` has, by name, with the reason. It
// fails where these are not as many as `skipped`, or a name is of no case.
func Run[Case any](t *testing.T, file string, skip map[string]string, skipped int, run func(t *testing.T, c Case)) {
	t.Helper()
	var content struct {
		Version int
		Cases   []json.RawMessage
	}
	text, err := os.ReadFile(Path(t, file))
	if err == nil {
		err = json.Unmarshal(text, &content)
	}
	if err != nil || content.Version != 1 || len(content.Cases) == 0 {
		t.Fatalf("%s: version %d, %d cases, error %v", file, content.Version, len(content.Cases), err)
	}
	ran, left := 0, 0
	for _, raw := range content.Cases {
		var named struct{ Name string }
		var c Case
		if err := json.Unmarshal(raw, &named); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &c); err != nil {
			t.Fatalf("%s: %s: %v", file, named.Name, err)
		}
		if reason, ok := skip[named.Name]; ok {
			t.Logf("%s: not run: %s: %s", file, named.Name, reason)
			left++
			continue
		}
		ran++
		t.Run(named.Name, func(t *testing.T) { run(t, c) })
	}
	t.Logf("%s: %d cases run, %d not", file, ran, left)
	if left != skipped || left != len(skip) {
		t.Errorf("%s: %d cases are not run, not %d; %d are named", file, left, skipped, len(skip))
	}
}

// Records are what `superpacket check` reads: packets that begin with a virtio_net_hdr of so many
// bytes, and then at the link header or the IP header.
type Records struct {
	Link         string // "ethernet" or "ip".
	HeaderLength int    // 10, 12, 20, 24, or 0 without headers.
	Packets      [][]byte
}

// Add appends a packet and its header.
func (r *Records) Add(header, packet []byte) {
	r.Packets = append(r.Packets, append(append([]byte(nil), header...), packet...))
}

// Write writes a file of its own, and returns its path.
func (r *Records) Write(t *testing.T) string {
	t.Helper()
	file := []byte(fmt.Sprintf("superpacket-records 1 %s %d\n", r.Link, r.HeaderLength))
	for _, packet := range r.Packets {
		file = binary.LittleEndian.AppendUint32(file, uint32(len(packet)))
		file = append(file, packet...)
	}
	path := filepath.Join(t.TempDir(), "packets.records")
	if err := os.WriteFile(path, file, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A Report is what was found: the verdict, how often each rule was broken, and all as text. The
// verdict is "faithful", "unfaithful" (a rule is broken), or "incomplete" (no rule is broken, but
// some packets could not be judged).
type Report struct {
	Verdict    string
	Violations int
	ByRule     map[string]int `json:"by_rule"`
	Text       string         `json:"-"`
}

// Check has what was made judged. Without the program, which SUPERPACKET names, the test is
// skipped; with CI set, it fails.
func Check(t *testing.T, made Records, origin string) (report Report) {
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
	command := exec.Command(program, "check", made.Write(t), "--origin", origin, "--all", "--json")
	command.Stderr = os.Stderr
	output, _ := command.Output()
	code := command.ProcessState.ExitCode()
	codes := map[string]int{"faithful": 0, "unfaithful": 1, "incomplete": 3}
	err := json.Unmarshal(output, &report)
	if expected, known := codes[report.Verdict]; err != nil || !known || code != expected {
		t.Fatalf("%v: exit code %d, %v:\n%s", command.Args, code, err, output)
	}
	report.Text = string(output)
	return report
}
