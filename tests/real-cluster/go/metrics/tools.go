//go:build tools

// Package tools imports upstream's program that is built unchanged, and so keeps it in go.mod.
package tools

import _ "sigs.k8s.io/metrics-server/cmd/metrics-server"
