// Alerts that fire from their causes, at the same time: each of these waits for scrapes and rules for most of its time.
import './fire-containers.ts';
import './fire-control-plane.ts';
import './fire-hardware.ts';
