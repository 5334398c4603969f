// Alerts about the parts that every pod with a share passes before it reaches a node: webhook and scheduler.
import { select } from '../lib/metrics.ts';
import { type Alert, alert } from './rule.ts';

export const CONTROL_PLANE_ALERTS: readonly Alert[] = [
  // Without scrape targets the chart installed no webhook, and the alert does not fire.
  alert('CotenantWebhookDown', 'critical', 'webhook', ({ webhookJob, webhookDown }) => ({
    expr: `sum(${select('up', `job="${webhookJob}"`)}) == 0`,
    lasts: webhookDown.lasts,
    summary: 'No replica of the webhook answers.',
    description: 'Pods that ask for a GPU share are refused. Other pods, and pods that run, are not affected.',
  })),
  alert('CotenantWebhookFails', 'warning', 'webhook', ({ webhookFails: { within } }) => ({
    expr: `increase(${select('cotenant_webhook_reviews_total', 'outcome=~"internal|overloaded"')}[${within}]) > 0`,
    summary: 'The webhook on {{ $labels.instance }} fails on pods.',
    description:
      '{{ $value | printf "%.0f" }} reviews of {{ $labels.route }} ended with {{ $labels.outcome }}, and their pods were refused.',
  })),
  alert('CotenantWebhookSlow', 'warning', 'webhook', ({ webhookSlow: { seconds, window, lasts } }) => ({
    expr: `histogram_quantile(0.99, sum without (route) (rate(${select('cotenant_webhook_review_duration_seconds_bucket')}[${window}]))) > ${seconds}`,
    lasts,
    summary: 'The webhook on {{ $labels.instance }} is slow.',
    description:
      'One of a hundred reviews takes longer than {{ $value | humanizeDuration }}, and the API server waits for each.',
  })),
  alert('CotenantCertificateRefused', 'warning', 'webhook', ({ certificateRefused: { within } }) => ({
    expr: `increase(${select('cotenant_webhook_certificate_loads_total', 'result="refused"')}[${within}]) > 0`,
    summary: 'The webhook on {{ $labels.instance }} refused its new certificate.',
    description:
      '{{ $value | printf "%.0f" }} loads of a certificate were refused. The webhook serves the old one until it expires.',
  })),
  alert('CotenantWebhookCertificateExpires', 'critical', 'webhook', ({ certificateExpires: { seconds } }) => ({
    expr: `${select('cotenant_webhook_certificate_not_after_timestamp_seconds')} - time() < ${seconds}`,
    summary: 'The certificate of the webhook on {{ $labels.instance }} expires in {{ $value | humanizeDuration }}.',
    description: 'It was not renewed. When it has expired, pods that ask for a GPU share are refused.',
  })),
  alert('CotenantLiveRulesInvalid', 'warning', 'webhook', ({ liveRulesInvalid: { lasts } }) => ({
    expr: `min by (job) (${select('cotenant_webhook_live_rules_valid')}) == 0`,
    lasts,
    summary: 'The live rules of the webhook are wrong.',
    description: 'The ConfigMap cannot be read, and the rules before it are in force.',
  })),
  // When no replica answers there is no series of the leader: the scrape targets show that a scheduler is installed.
  alert('CotenantSchedulerNotLeading', 'critical', 'scheduler', ({ schedulerJob, schedulerNotLeading }) => ({
    expr: `(sum(${select('cotenant_scheduler_leader')}) or 0 * sum(${select('up', `job="${schedulerJob}"`)})) == 0`,
    lasts: schedulerNotLeading.lasts,
    summary: 'No replica of the scheduler leads.',
    description: 'Pods with a GPU share are not bound. Pods that run are not affected.',
  })),
  alert('CotenantSchedulerBindFailures', 'warning', 'scheduler', ({ bindFailures: { count, within } }) => ({
    expr: `increase(${select('cotenant_scheduler_decisions_total', 'verb="bind"', 'outcome="failed"')}[${within}]) > ${count}`,
    summary: 'The scheduler on {{ $labels.instance }} cannot bind pods.',
    description:
      '{{ $value | printf "%.0f" }} bindings failed. The API server refused them or did not answer; each is tried again.',
  })),
  alert('CotenantSchedulerSlow', 'warning', 'scheduler', ({ schedulerSlow: { seconds, window, lasts } }) => ({
    expr: `histogram_quantile(0.99, rate(${select('cotenant_scheduler_decision_duration_seconds_bucket')}[${window}])) > ${seconds}`,
    lasts,
    summary: 'The scheduler on {{ $labels.instance }} is slow.',
    description:
      'One of a hundred calls of {{ $labels.verb }} takes longer than {{ $value | humanizeDuration }}. Pods with a GPU share wait in the queue of kube-scheduler.',
  })),
  alert('CotenantApiServerProblems', 'warning', 'scheduler', ({ apiProblems: { count, within } }) => ({
    expr: `increase(${select('cotenant_scheduler_watch_problems_total')}[${within}]) > ${count}`,
    summary: 'The scheduler on {{ $labels.instance }} cannot watch {{ $labels.kind }}.',
    description:
      '{{ $value | printf "%.0f" }} lists and watches of the API server failed. The scheduler decides by what it knew before.',
  })),
  alert('CotenantSchedulerInvalidObjects', 'warning', 'scheduler', ({ invalidObjects: { lasts } }) => ({
    expr: `max by (job, kind) (${select('cotenant_scheduler_invalid_objects')}) > 0`,
    lasts,
    summary: 'The scheduler cannot read the annotations of {{ $value }} {{ $labels.kind }}.',
    description: 'The GPUs that these annotations name take no new pods.',
  })),
];
