module cotenant.io/clients/cgo

go 1.18
