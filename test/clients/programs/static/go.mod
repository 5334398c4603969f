module cotenant.io/clients/static

go 1.18
