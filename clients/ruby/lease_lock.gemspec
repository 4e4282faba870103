# frozen_string_literal: true

require_relative "lib/lease_lock/version"

Gem::Specification.new do |spec|
  spec.name = "lease_lock"
  spec.version = LeaseLock::VERSION
  spec.summary = "Lease locks of the PostgreSQL extension lease_lock"
  spec.description = "Leases that are renewed in the background, noticed in time when they are lost, and fenced where data is written."
  spec.authors = ["lease_lock maintainers"]
  spec.license = "PostgreSQL"
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir["lib/**/*", "README.md", "LICENSE"]
  spec.add_dependency "logger", "~> 1.4" # not in Ruby itself from 4.0 on
  spec.add_dependency "pg", "~> 1.3"
end
