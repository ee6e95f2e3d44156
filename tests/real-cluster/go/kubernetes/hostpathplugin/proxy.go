package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
)

// listen opens a listener for `tcp://ADDRESS`, `unix://PATH` or a path.
func listen(endpoint string) (net.Listener, error) {
	network, address, found := strings.Cut(endpoint, "://")
	if !found {
		network, address = "unix", endpoint
	}
	if network == "unix" {
		if err := os.Remove(address); err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("remove the socket of a former process: %w", err)
		}
	}
	return net.Listen(network, address)
}

// join copies both ways until one side ends.
func join(one, other net.Conn) {
	copied := make(chan struct{}, 2)
	forward := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		copied <- struct{}{}
	}
	go forward(one, other)
	go forward(other, one)
	<-copied
	_ = one.Close()
	_ = other.Close()
}

// proxy joins each connection to a socket with the next connection to a port.
func proxy(socket, port string) error {
	clients, err := listen(socket)
	if err != nil {
		return err
	}
	drivers, err := listen(port)
	if err != nil {
		return err
	}
	for {
		client, err := clients.Accept()
		if err != nil {
			return err
		}
		driver, err := drivers.Accept()
		if err != nil {
			return err
		}
		go join(client, driver)
	}
}
