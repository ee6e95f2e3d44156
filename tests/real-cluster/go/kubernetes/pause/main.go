// Command pause is the first process of a pod: it holds the pod's namespaces, collects ended processes and ends on a signal.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			id, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err != nil || id <= 0 {
				break
			}
		}
	}
}
