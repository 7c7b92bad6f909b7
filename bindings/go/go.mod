module ekiden.dev/ekiden

go 1.23
