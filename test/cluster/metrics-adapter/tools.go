//go:build tools

// Imports the program that is built, so that `go mod tidy` keeps its modules.
package tools

import _ "sigs.k8s.io/prometheus-adapter/cmd/adapter"
