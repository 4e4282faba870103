# frozen_string_literal: true

module LeaseLock
  VERSION = "1.0.0"
end
