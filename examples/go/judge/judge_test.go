package judge

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVectorsByVariable(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "checksum.json")
	content := `{"version": 1, "cases": [{"name": "one", "bytes": "00", "sum": 0}]}`
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SUPERPACKET_VECTORS", folder)
	if path := Path(t, "checksum.json"); path != file {
		t.Errorf("%s, not %s", path, file)
	}
	ran := 0
	Run(t, "checksum.json", nil, 0, func(t *testing.T, c Checksum) { ran++ })
	if ran != 1 {
		t.Errorf("%d cases", ran)
	}
	if _, err := find(folder, "virtio.json"); err == nil || !strings.Contains(err.Error(), "SUPERPACKET_VECTORS") {
		t.Errorf("%v", err)
	}
}

func TestVectorsAbove(t *testing.T) {
	t.Setenv("SUPERPACKET_VECTORS", "")
	if path := Path(t, "virtio.json"); !strings.HasSuffix(path, filepath.Join("vectors", "virtio.json")) {
		t.Error(path)
	}
	// Far from the vectors, the message names the variable.
	here, err := os.Getwd()
	if err == nil {
		err = os.Chdir(t.TempDir())
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.Chdir(here)
	if _, err := find("", "virtio.json"); err == nil || !strings.Contains(err.Error(), "set SUPERPACKET_VECTORS") {
		t.Errorf("%v", err)
	}
}
