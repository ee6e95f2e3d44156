package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// volumes is the state of the driver, which its processes share: a folder per volume with its data, its size, and a file
// for each node that it is attached to or mounted on.
//
// Each action is a line of the file events.log. A line with VIOLATION after the time reports a request that would damage
// the data of a real volume.
type volumes struct {
	root   string
	events *log.Logger
}

// Entries of a volume's folder.
const (
	data     = "data"
	size     = "size"
	attached = "attached"
	mounted  = "mounted"
)

func open(root string) (*volumes, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	// Lines of several processes are appended whole.
	file, err := os.OpenFile(filepath.Join(root, "events.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return &volumes{root: root, events: log.New(file, "", log.LstdFlags)}, nil
}

// checkName refuses names that cannot be the name of one folder.
func checkName(name string) error {
	if name == "" || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") || len(name) > 128 {
		return status.Errorf(codes.InvalidArgument, "%q cannot be the name of a folder", name)
	}
	return nil
}

// path returns the path of a volume's folder, or of an entry in it.
func (v *volumes) path(volume string, entries ...string) string {
	return filepath.Join(append([]string{v.root, volume}, entries...)...)
}

// find fails unless the volume exists.
func (v *volumes) find(volume string) error {
	if err := checkName(volume); err != nil {
		return err
	}
	if _, err := os.Stat(v.path(volume, size)); err != nil {
		return status.Errorf(codes.NotFound, "there is no volume %s", volume)
	}
	return nil
}

func (v *volumes) size(volume string) (int64, error) {
	text, err := os.ReadFile(v.path(volume, size))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// setSize writes the size, which is the last entry of a new volume: without it, the volume does not exist.
func (v *volumes) setSize(volume string, bytes int64) error {
	unfinished := v.path(volume, size+".new")
	if err := os.WriteFile(unfinished, fmt.Appendf(nil, "%d\n", bytes), 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished, v.path(volume, size))
}

// nodes returns the nodes that a volume is attached to or mounted on, sorted.
func (v *volumes) nodes(volume, kind string) ([]string, error) {
	entries, err := os.ReadDir(v.path(volume, kind))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

func (v *volumes) is(volume, kind, node string) (bool, error) {
	names, err := v.nodes(volume, kind)
	return slices.Contains(names, node), err
}

func (v *volumes) set(volume, kind, node string) error {
	if err := checkName(node); err != nil {
		return err
	}
	return os.WriteFile(v.path(volume, kind, node), []byte(time.Now().Format(time.RFC3339)), 0o644)
}

func (v *volumes) unset(volume, kind, node string) error {
	if err := checkName(node); err != nil {
		return err
	}
	if err := os.Remove(v.path(volume, kind, node)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

func (v *volumes) violation(format string, arguments ...any) {
	v.events.Printf("VIOLATION "+format, arguments...)
}
